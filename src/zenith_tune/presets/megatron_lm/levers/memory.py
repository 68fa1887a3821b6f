"""Levers that free memory: they are tried beside what does not fit without them.

torch's FSDP2 is, by Megatron's own help, not in a stable stage yet: it is tried on request. Releases before 0.12 always
ask for CUDA_DEVICE_MAX_CONNECTIONS=1, and FSDP2 for another value.
"""

from __future__ import annotations

from dataclasses import replace

from zenith_tune.presets.levers import ASSUMED
from zenith_tune.presets.megatron_lm.job import MEGATRON_FSDP, TORCH_FSDP
from zenith_tune.presets.megatron_lm.levers.declaration import BRIDGE, MegatronLever, Situation, has_adam
from zenith_tune.presets.megatron_lm.options import GATHER, SHARDING
from zenith_tune.presets.megatron_lm.rules import WITH_STEP


def _is_free(at: Situation) -> bool:
    """Tell whether nothing but data is parallel, and nothing keeps its messages from running beside the arithmetic."""
    layout = at.layout
    is_plain = layout.tp == layout.cp == layout.pp == 1 and at.has_replicas
    is_free = at.variable("CUDA_DEVICE_MAX_CONNECTIONS") != "1"
    return is_plain and is_free and at.job.args.has("--untie-embeddings-and-output-weights")


def _can_shard_fully(at: Situation) -> bool:
    return _is_free(at) and at.has_shards and has_adam(at)


def _can_shard_by_torch(at: Situation) -> bool:
    return _is_free(at) and at.layout.ep == 1 and at.job.job.precision != "fp16"


NO_GRADIENT_FUSION = "--no-gradient-accumulation-fusion"
FULL_SHARDING = {"--data-parallel-sharding-strategy": "optim_grads_params"}
FSDP = MegatronLever(
    name="fsdp",
    sets={MEGATRON_FSDP[0]: True, "--ckpt-format": "fsdp_dtensor", **FULL_SHARDING},
    first=(0, 14),
    goes=_can_shard_fully,
    excluded_by=("--save", "--load", "--ckpt-format", "--check-weight-hash-across-dp-replicas-interval"),
    excludes=frozenset(
        {"torch_fsdp2", "bucket_size", "high_busbw_buckets", "cuda_graphs", "gradient_fusion", "bf16_grads"}
    ),
    saves={"dp": -0.5},
    memory=-0.2,
    is_alone=True,
    source=f"{ASSUMED}: weights are gathered forward and backward, and 6 of 18 bytes a weight are shared as well",
)
TORCH = MegatronLever(
    name="torch_fsdp2",
    sets={TORCH_FSDP: True, NO_GRADIENT_FUSION: True, SHARDING: None, GATHER: None},
    first=(0, 12),
    goes=_can_shard_by_torch,
    dumped={"use_torch_fsdp2": True, "use_distributed_optimizer": False, "overlap_param_gather": False},
    excluded_by=(
        *("--save", "--load", "--ckpt-format", WITH_STEP, "--use-precision-aware-optimizer"),
        *("--optimizer-cpu-offload", "--ddp-pad-buckets-for-high-nccl-busbw"),
    ),
    excludes=FSDP.excludes - {"torch_fsdp2"}
    | {"fsdp", "overlap=params", "precision_aware_optimizer", "offloaded_optimizer", "bf16_moments"},
    saves=FSDP.saves,
    memory=FSDP.memory,
    is_alone=True,
    is_unstable=True,
    source=FSDP.source,
)
FULL_SHARDING_LEVERS = (
    replace(
        FSDP,
        sets={MEGATRON_FSDP[1]: True, NO_GRADIENT_FUSION: True, **FULL_SHARDING},
        first=(0, 12),
        last=(0, 13),
        dumped={"use_custom_fsdp": True},
    ),
    FSDP,
    TORCH,
)
MEMORY_LEVERS = (
    MegatronLever(
        name="precision_aware_optimizer",
        sets={"--use-precision-aware-optimizer": True},
        first=(0, 11),
        goes=has_adam,
        excludes=frozenset({"offloaded_optimizer"}),
        memory=-0.02,
        source="counted: 2 of 12 bytes of a weight's optimizer state, which keeps what bf16 lacks of fp32",
    ),
    *FULL_SHARDING_LEVERS,
    MegatronLever(
        name="offloaded_optimizer",
        sets={
            "--optimizer-cpu-offload": True,
            "--use-precision-aware-optimizer": True,
            "--overlap-cpu-optimizer-d2h-h2d": True,
        },
        first=(0, 12),
        goes=has_adam,
        excludes=frozenset({"precision_aware_optimizer", "fsdp"}),
        saves={"optimizer": -60.0},
        memory=-0.3,
        source=f"{BRIDGE}: steps of Qwen3-30B 4.2 times as long with all of it on the host",
    ),
)
