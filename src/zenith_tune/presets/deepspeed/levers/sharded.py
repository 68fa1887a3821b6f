"""Levers of weights that are sharded (stage 3), and of states that lie in the host's memory."""

from __future__ import annotations

from zenith_tune.presets.deepspeed.levers.declaration import OPTIMIZER, PARAMS, DeepSpeedLever, ZeroSituation, zero
from zenith_tune.presets.deepspeed.levers.traffic import has_replicas, is_below
from zenith_tune.presets.levers import ASSUMED, Effect
from zenith_tune.strategies.zero_progressive.ds_config import Keys

PREFETCH, PERSISTENCE = "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"
LIVE, REUSE, HPZ = "stage3_max_live_parameters", "stage3_max_reuse_distance", "zero_hpz_partition_size"
AHEAD, PERSISTENT, ALL = 200_000_000, 1_000_000, 10_000_000_000
HALF, STATES = 2, 12
"""Bytes of a weight, and of its copy and moments in fp32."""
ON_HOST = 60.0
"""How many times as long an optimizer takes that runs on the host."""
ZERO_PP = "Wang et al. 2023 (ZeRO++, arXiv 2306.10209, table 1)"
SIXTY = "NVIDIA, Megatron-Bridge's measured runs: 60 times as long on the host"
PLUS_PLUS, RATIO = (0, 10), (0, 12, 3)
"""The first releases that have ZeRO++, and that offload a part of the optimizer."""
PINNED = (0, 19, 5)
"""The first release that pins what it offloads unless the file says otherwise."""


def _releases_weights(at: ZeroSituation) -> Effect | None:
    """Return what it saves to keep all weights from the forward to the backward pass: one of three gathers."""
    live, params = int(at.own(zero(LIVE)) or 0), at.num_params
    memory = at.memory_with(LIVE, ALL)
    if params is None or memory is None or params <= live:
        return None
    return Effect(saves={"dp": (1 - live / params) / 3}, memory=memory)


def _on_nodes_of(size: int, at: ZeroSituation) -> bool:
    """Tell whether the job has several nodes of so many ranks, with weights in the GPUs' memory."""
    is_plain = not at.is_offloaded(PARAMS) and at.own(zero("mics_shard_size")) in (None, -1)
    return at.num_nodes > 1 and at.num_ranks == size * at.num_nodes and is_plain


def _hpz(size: int) -> DeepSpeedLever:
    return DeepSpeedLever(
        name=HPZ,
        value=size,
        sets={zero(HPZ): size},
        stages=(3,),
        first=PLUS_PLUS,
        goes=lambda at: _on_nodes_of(size, at),
        excludes=frozenset({LIVE}),
        saves={"dp": 0.3},
        memory_at=lambda at: at.share_of(HALF * (at.num_params or 0) / size),
        memory=0.1,
        is_alone=True,
        source=f"{ZERO_PP}: one of three times the weights' size does not cross nodes",
    )


def _has_cpu_adam(at: ZeroSituation) -> bool:
    """Tell whether the optimizer is on the host, and DeepSpeed's own: others cannot be split."""
    is_torch = at.config.flag(("optimizer", "params", "torch_adam"))
    is_forced = at.config.flag(("zero_force_ds_cpu_optimizer",), default=True)
    kind = at.config.get(("optimizer", "type"))
    is_adam = kind is None or str(kind).lower() in ("adam", "adamw", "auto")
    return at.is_offloaded(OPTIMIZER) and is_adam and is_forced and not is_torch


def _is_pageable(keys: Keys, at: ZeroSituation) -> bool:
    """Tell whether a part lies on the host in memory that is not pinned, by the file or by the release's default."""
    pinned = at.config.get((*keys, "pin_memory"))
    by_default = at.release is not None and at.release >= PINNED
    return at.is_offloaded(keys) and (pinned is False or (pinned is None and not by_default))


def _ratio(ratio: float) -> DeepSpeedLever:
    return DeepSpeedLever(
        name="offload_ratio",
        value=ratio,
        sets={(*OPTIMIZER, "ratio"): ratio},
        stages=(3,),
        first=RATIO,
        goes=lambda at: _has_cpu_adam(at) and (at.config.get((*OPTIMIZER, "ratio")) or 1.0) > ratio,
        saves={"optimizer": ON_HOST * (1 - ratio)},
        memory_at=lambda at: at.share_of(STATES * (1 - ratio) * (at.num_params or 0) / at.num_ranks),
        memory=0.4 * (1 - ratio),
        is_alone=True,
        source=f"counted: what is left to the GPU of an optimizer; {SIXTY}",
    )


QUANTIZED = DeepSpeedLever(
    name="zero_quantized_weights",
    sets={zero("zero_quantized_weights"): True},
    stages=(3,),
    first=PLUS_PLUS,
    goes=lambda at: has_replicas(at) and at.precision != "fp32",
    saves={"dp": 0.3},
    numerics=True,
    is_alone=True,
    source=f"{ZERO_PP}: weights of 1 in place of 2 bytes in both gathers",
)
SHARDED_LEVERS = (
    DeepSpeedLever(
        name=PREFETCH,
        value=AHEAD,
        sets={zero(PREFETCH): AHEAD},
        stages=(3,),
        goes=is_below(PREFETCH, AHEAD),
        saves={"dp": 0.1},
        memory_at=lambda at: at.memory_with(PREFETCH, AHEAD),
        memory=0.02,
        source=f"{ASSUMED}: more weights are gathered behind the layers before them",
    ),
    DeepSpeedLever(
        name=PERSISTENCE,
        value=PERSISTENT,
        sets={zero(PERSISTENCE): PERSISTENT},
        stages=(3,),
        goes=is_below(PERSISTENCE, PERSISTENT),
        saves={"dp": 0.03, "overhead": 0.1},
        memory=0.01,
        source=f"{ASSUMED}: small weights, which take a message each, stay on every rank",
    ),
    DeepSpeedLever(
        name=LIVE,
        value=ALL,
        sets={zero(LIVE): ALL, zero(REUSE): ALL},
        stages=(3,),
        goes=lambda at: has_replicas(at) and not at.is_offloaded(PARAMS),
        excludes=frozenset({HPZ}),
        effect=_releases_weights,
        source="counted: one of three times the weights' size, as far as they are released after the forward pass",
    ),
    *(_hpz(size) for size in (2, 4, 8, 16)),
    *(_ratio(ratio) for ratio in (0.25, 0.5, 0.75)),
    DeepSpeedLever(
        name="pinned_optimizer",
        sets={(*OPTIMIZER, "pin_memory"): True},
        stages=(1, 2, 3),
        goes=lambda at: _is_pageable(OPTIMIZER, at),
        saves={"optimizer": 10.0},
        source=f"{ASSUMED}: copies that wait for nobody; DeepSpeed has it on from 0.19.5",
    ),
    DeepSpeedLever(
        name="pinned_params",
        sets={(*PARAMS, "pin_memory"): True},
        stages=(3,),
        goes=lambda at: _is_pageable(PARAMS, at),
        saves={"dp": 0.3},
        source=f"{ASSUMED}: copies that wait for nobody; DeepSpeed has it on from 0.19.5",
    ),
    QUANTIZED,
    DeepSpeedLever(
        name="zero_quantized_gradients",
        sets={zero("zero_quantized_gradients"): True},
        stages=(3,),
        first=PLUS_PLUS,
        goes=QUANTIZED.goes,
        saves={"dp": 0.25},
        numerics=True,
        is_alone=True,
        source=f"{ZERO_PP}: gradients of half a byte in place of 2",
    ),
)
