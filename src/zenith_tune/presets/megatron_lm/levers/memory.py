"""Levers that free memory: they are tried beside what does not fit without them.

--use-torch-fsdp2 is not among them: it takes the distributed optimizer away and is, by Megatron's own help, not yet in
a stable stage.
"""

from __future__ import annotations

from dataclasses import replace

from zenith_tune.presets.levers import ASSUMED
from zenith_tune.presets.megatron_lm.levers.declaration import BRIDGE, MegatronLever, Situation, has_adam


def _can_shard_fully(at: Situation) -> bool:
    layout, args = at.layout, at.job.args
    is_plain = layout.tp == layout.cp == layout.pp == 1 and at.has_shards and has_adam(at)
    is_free = at.variable("CUDA_DEVICE_MAX_CONNECTIONS") != "1"
    return is_plain and is_free and args.has("--untie-embeddings-and-output-weights")


FULL_SHARDING = {"--data-parallel-sharding-strategy": "optim_grads_params"}
FSDP = MegatronLever(
    name="fsdp",
    sets={"--use-megatron-fsdp": True, "--ckpt-format": "fsdp_dtensor", **FULL_SHARDING},
    first=(0, 14),
    goes=_can_shard_fully,
    excluded_by=("--save", "--load", "--ckpt-format", "--check-weight-hash-across-dp-replicas-interval"),
    excludes=frozenset({"bucket_size", "high_busbw_buckets", "cuda_graphs", "gradient_fusion", "bf16_grads"}),
    saves={"dp": -0.5},
    memory=-0.2,
    is_alone=True,
    source=f"{ASSUMED}: weights are gathered forward and backward, and 6 of 18 bytes a weight are shared as well",
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
    replace(
        FSDP,
        sets={"--use-custom-fsdp": True, "--no-gradient-accumulation-fusion": True, **FULL_SHARDING},
        first=(0, 12),
        last=(0, 13),
        dumped={"use_custom_fsdp": True},
    ),
    FSDP,
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
