"""The levers of DeepSpeed: which a point is offered, how they are written, and what a log says of them.

Those of the gradients' and weights' traffic are tried without a known model too: each is off by DeepSpeed's default or
by the user's file, and is generally right with several ranks. The others are of weights that are sharded (stage 3), and
of states that lie in the host's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from zenith_tune.describe.deepspeed_config import Keys
from zenith_tune.presets.levers import ASSUMED, Effect, set_levers
from zenith_tune.presets.shared.zero_lever_declaration import (
    OPTIMIZER,
    OVERLAP,
    PARAMS,
    DeepSpeedLever,
    ZeroSituation,
    zero,
)
from zenith_tune.study.parameters import Value

REDUCE, GATHER = "reduce_bucket_size", "allgather_bucket_size"
SMALL, MIDDLE, LARGE = 50_000_000, 200_000_000, 500_000_000
BEHIND = f"{ASSUMED}: the backward pass hides what is reduced during it"
COUNTED_BUCKETS = "counted: the last bucket is reduced after the backward pass, and a model below one has no other"


def has_replicas(at: ZeroSituation) -> bool:
    """Return whether gradients are reduced over several ranks."""
    return at.num_ranks > 1


def _scatters(at: ZeroSituation) -> bool:
    """Return whether gradients are averaged as reduce-scatter has it."""
    predivide = at.config.get(("gradient_predivide_factor",))
    return has_replicas(at) and predivide in (None, 1) and not at.config.flag(("prescale_gradients",))


def is_below(name: str, value: int) -> Callable[[ZeroSituation], bool]:
    """Return whether a size is smaller than a value, or left to the Trainer, which takes small ones."""
    return lambda at: has_replicas(at) and (at.own(zero(name)) or 0) < value


def smaller_bucket(value: int) -> Callable[[ZeroSituation], Effect]:
    """Return what smaller buckets save of an overlapped reduction: all but the last of them are hidden."""

    def effect(at: ZeroSituation) -> Effect:
        own, params = int(at.own(zero(REDUCE)) or value), at.num_params
        saved = (min(own, params) - min(value, params)) / params if params else 0.05
        return Effect(saves={"dp": saved}, memory=at.memory_with(REDUCE, value) or 0.0)

    return effect


def _small(value: int) -> DeepSpeedLever:
    return DeepSpeedLever(
        name=REDUCE,
        value=value,
        sets={zero(REDUCE): value},
        stages=(1, 2, 3),
        goes=lambda at: has_replicas(at) and (at.own(zero(REDUCE)) or 0) > value,
        needs={"overlap_comm": lambda at: at.own(OVERLAP) is True},
        effect=smaller_bucket(value),
        source=COUNTED_BUCKETS,
    )


TRAFFIC_LEVERS = (
    DeepSpeedLever(
        name="overlap_comm",
        sets={OVERLAP: True},
        stages=(1, 2, 3),
        goes=has_replicas,
        saves={"dp": 0.6},
        memory_at=lambda at: at.memory_with("overlap_comm", True),
        memory=0.03,
        source=BEHIND,
    ),
    DeepSpeedLever(
        name="contiguous_gradients",
        sets={zero("contiguous_gradients"): True},
        stages=(1, 2, 3),
        goes=has_replicas,
        saves={"dp": 0.03},
        memory_at=lambda at: at.memory_with("contiguous_gradients", True),
        memory=0.03,
        source=f"{ASSUMED}; DeepSpeed has it on, so that gradients do not split the memory into pieces",
    ),
    DeepSpeedLever(
        name="reduce_scatter",
        sets={zero("reduce_scatter"): True},
        stages=(2,),
        goes=_scatters,
        saves={"dp": 0.3},
        source="counted: an all-reduce is two reduce-scatters, beside one gather of the weights",
    ),
    DeepSpeedLever(
        name="allgather_partitions",
        sets={zero("allgather_partitions"): True},
        stages=(1, 2),
        goes=has_replicas,
        saves={"dp": 0.1},
        source=f"{ASSUMED}: one gather in place of a broadcast from each rank",
    ),
    _small(SMALL),
    _small(MIDDLE),
    DeepSpeedLever(
        name=REDUCE,
        value=LARGE,
        sets={zero(REDUCE): LARGE},
        stages=(1, 2, 3),
        goes=is_below(REDUCE, LARGE),
        saves={"dp": 0.03},
        memory_at=lambda at: at.memory_with(REDUCE, LARGE),
        memory=0.03,
        source=f"{ASSUMED}: fewer messages, at DeepSpeed's own size",
    ),
    DeepSpeedLever(
        name=GATHER,
        value=LARGE,
        sets={zero(GATHER): LARGE},
        stages=(1, 2),
        goes=is_below(GATHER, LARGE),
        saves={"dp": 0.03},
        memory=0.01,
        source=f"{ASSUMED}: fewer messages, at DeepSpeed's own size",
    ),
    DeepSpeedLever(
        name="round_robin_gradients",
        sets={zero("round_robin_gradients"): True},
        stages=(1, 2),
        goes=lambda at: has_replicas(at) and at.is_offloaded(OPTIMIZER),
        saves={"optimizer": 5.0},
        source=f"{ASSUMED}: ranks copy gradients to the host side by side, beside an optimizer 60 times as slow there",
    ),
    DeepSpeedLever(
        name="communication_data_type",
        value="bf16",
        sets={("communication_data_type",): "bf16"},
        stages=(0, 1, 2, 3),
        goes=lambda at: has_replicas(at) and at.own(("communication_data_type",)) in _single(at),
        dumped={"communication_data_type": "torch.bfloat16"},
        saves={"dp": 0.3},
        numerics=True,
        source="counted: gradients of 2 in place of 4 bytes, which are two thirds of the traffic",
    ),
)


def _single(at: ZeroSituation) -> tuple[str | None, ...]:
    """Return the types of communication that have four bytes: where none is named, it follows the precision."""
    return ("fp32", None) if at.precision == "fp32" else ("fp32",)


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
    """Return whether the job has several nodes of so many ranks, with weights in the GPUs' memory."""
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
    """Return whether the optimizer is on the host, and DeepSpeed's own: others cannot be split."""
    is_torch = at.config.flag(("optimizer", "params", "torch_adam"))
    is_forced = at.config.flag(("zero_force_ds_cpu_optimizer",), default=True)
    kind = at.config.get(("optimizer", "type"))
    is_adam = kind is None or str(kind).lower() in ("adam", "adamw", "auto")
    return at.is_offloaded(OPTIMIZER) and is_adam and is_forced and not is_torch


def _is_pageable(keys: Keys, at: ZeroSituation) -> bool:
    """Return whether a part lies on the host in memory that is not pinned, by the file or by the release's default."""
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


LEVERS: tuple[DeepSpeedLever, ...] = (*TRAFFIC_LEVERS, *SHARDED_LEVERS)


def levers_for(at: ZeroSituation, searched: Collection[Keys] = ()) -> list[DeepSpeedLever]:
    """Return the levers that can be turned on for a point, without keys that are searched with it."""
    return [lever for lever in LEVERS if lever.sets.keys().isdisjoint(searched) and lever.is_for(at)]


def lever_settings(levers: Mapping[str, Value]) -> dict[Keys, Value]:
    """Return what levers set in the configuration."""
    return {keys: value for lever in set_levers(LEVERS, levers) for keys, value in lever.sets.items()}


def logged_levers(levers: Mapping[str, Value]) -> dict[str, Value]:
    """Return what the dump of a run's configuration says of levers."""
    return {name: value for lever in set_levers(LEVERS, levers) for name, value in lever.logged.items()}
