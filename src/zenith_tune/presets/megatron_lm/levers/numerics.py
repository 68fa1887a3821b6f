"""Levers that may change what a model learns: they are tried where they are allowed by name."""

from __future__ import annotations

from dataclasses import replace

from zenith_tune.presets.levers import ASSUMED
from zenith_tune.presets.megatron_lm.levers.declaration import MegatronLever, Situation, has_adam


def _is_bf16(at: Situation) -> bool:
    return at.has_engine and at.job.job.precision == "bf16"


def _has_fp8(at: Situation) -> bool:
    return _is_bf16(at) and (at.subject is None or at.subject.cluster.gpu.fp8_flops > 0)


def _has_fp4(at: Situation) -> bool:
    """Tell whether the GPUs are of the generation that has fp4, and scales blocks of 32 in hardware (Blackwell)."""
    return _is_bf16(at) and at.subject is not None and at.subject.cluster.gpu.fp4_flops > 0


NUMERICS = "NVIDIA, Megatron-Bridge's performance guide: 1.2 to 1.5 times as fast as bf16"
FP8 = MegatronLever(
    name="fp8",
    value="tensorwise",
    sets={"--fp8-format": "hybrid", "--fp8-recipe": "tensorwise"},
    first=(0, 12),
    goes=lambda at: _has_fp8(at) and not _has_fp4(at),
    dumped={"fp8": "hybrid", "fp8_recipe": "tensorwise"},
    excluded_by=("--first-last-layers-bf16",),
    excludes=frozenset({"fp4", "modules"}),
    saves={"compute": 0.3},
    numerics=True,
    is_alone=True,
    source=NUMERICS,
)
NUMERIC_LEVERS = (
    replace(
        FP8,
        value="delayed",
        sets={"--fp8-format": "hybrid", "--fp8-amax-history-len": 1024, "--fp8-amax-compute-algo": "max"},
        first=(0, 9),
        last=(0, 11),
        goes=lambda at: _has_fp8(at) and (not at.job.has_experts or at.job.features.release > (0, 9)),
        dumped={"fp8": "hybrid"},
    ),
    FP8,
    replace(
        FP8,
        value="mxfp8",
        sets={"--fp8-format": "e4m3", "--fp8-recipe": "mxfp8"},
        goes=_has_fp4,
        dumped={"fp8": "e4m3", "fp8_recipe": "mxfp8"},
    ),
    MegatronLever(
        name="fp4",
        sets={"--fp4-format": "e2m1"},
        first=(0, 15),
        goes=_has_fp4,
        dumped={"fp4": "e2m1"},
        excludes=frozenset({"fp8", "modules"}),
        saves={"compute": 0.4},
        numerics=True,
        is_alone=True,
        source=f"{ASSUMED}; more than {NUMERICS} of fp8",
    ),
    MegatronLever(
        name="bf16_grads",
        sets={"--grad-reduce-in-bf16": True, "--accumulate-allreduce-grads-in-fp32": None},
        first=(0, 12),
        goes=lambda at: at.has_replicas and at.job.args.has("--bf16"),
        dumped={"accumulate_allreduce_grads_in_fp32": False},
        excludes=frozenset({"fsdp"}),
        saves={"dp": 0.4},
        memory=-0.03,
        numerics=True,
        source="counted: gradients of 2 in place of 4 bytes",
    ),
    MegatronLever(
        name="bf16_moments",
        sets={
            "--use-precision-aware-optimizer": True,
            "--exp-avg-dtype": "bf16",
            "--exp-avg-sq-dtype": "bf16",
        },
        first=(0, 13),
        goes=has_adam,
        dumped={"use_precision_aware_optimizer": True},
        excludes=frozenset({"offloaded_optimizer", "precision_aware_optimizer", "fsdp"}),
        memory=-0.05,
        numerics=True,
        source="counted: 6 of 12 bytes of a weight's optimizer state",
    ),
)
