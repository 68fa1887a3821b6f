"""Families of frameworks that share coefficients of time, and the priors of those that are fitted."""

from __future__ import annotations

from dataclasses import dataclass, field

from zenith_tune.estimates.calibration import TimeCoefficients

EFFICIENCY, PASSES, TRAFFIC, LAUNCH = 0.25, 0.2, 0.4, 0.5
"""Prior standard deviations of the logarithm of each kind of coefficient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipes:
    """Settings that a framework's own recipes for models with experts on some GPUs have from a release on."""

    since: float
    """The release, as a year."""
    gpus: tuple[str, ...]
    precision: str
    """One of the kinds of `precision_class`."""
    coefficients: tuple[str, ...]
    """What the settings change."""
    prior: float = 0.6
    """Prior standard deviation of the logarithm of each change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeFamily:
    """Frameworks that are fitted together."""

    name: str
    frameworks: tuple[str, ...]
    alike: tuple[str, ...] = ()
    """Members that run the kernels of the first one and differ only in memory."""
    start: TimeCoefficients = field(default_factory=TimeCoefficients)
    fitted: dict[str, float] = field(default_factory=dict)
    """Prior standard deviation of the logarithm of each fitted coefficient."""
    by_gpu: tuple[str, ...] = ()
    """Coefficients that may differ by GPU."""
    by_release: tuple[str, ...] = ()
    """Coefficients that may change with the framework's releases."""
    recipes: tuple[Recipes, ...] = ()
    """Recipes whose runs say nothing of jobs without their settings."""
    by_source: tuple[str, ...] = ()
    """Coefficients of which each of several sources has its own level: those of the family are the mean of them."""
    pools: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Similar GPUs that share factors: a name and its members."""
    gpu_prior: float = 0.3
    """Prior standard deviation of one GPU's factors around those of its pool."""
    source_prior: float = 0.2
    factor_prior: float = 0.3
    trend_prior: float = 0.2


DENSE = {
    "gemm_efficiency": EFFICIENCY,
    "attention_efficiency": 2 * EFFICIENCY,
    "hidden_passes": PASSES,
    "ffn_passes": PASSES,
    "logit_passes": PASSES,
    "fast_efficiency": TRAFFIC,
    "slow_efficiency": TRAFFIC,
    "data_overlap": TRAFFIC,
    "data_decay": 1.0,
    "optimizer_passes": 2 * PASSES,
    "step_overhead_s": LAUNCH,
}
TENSOR = {"tensor_exposed": TRAFFIC}
EXPERTS = {
    "expert_launch_s": 1.0,
    "expert_product_s": 1.0,
    "expert_efficiency": EFFICIENCY,
    "expert_narrowness": LAUNCH,
    "expert_passes": 1.0,
    "expert_exposed": TRAFFIC,
}
HOST = {"layer_launch_s": LAUNCH, "launch_again": 0.25, "tensor_launch_s": LAUNCH}
NANOTRON_START = TimeCoefficients(
    gemm_efficiency=0.65,
    attention_efficiency=0.2,
    layer_launch_s=4e-3,
    stage_wait_s=2e-3,
    network_wait_s=5e-4,
    handover_wait_s=0.2,
    data_overlap=0.1,
    thrash=4.5,
)

BLACKWELL = (
    ("blackwell", ("b200", "b300", "gb200", "gb300")),
    ("ultra", ("b300", "gb300")),
    ("grace", ("gb200", "gb300")),
)
"""One architecture, its larger chip, and its boards with an integrated host."""
RECIPES_26_06 = Recipes(
    since=2026 + 5 / 12,
    gpus=("gb200", "gb300"),
    precision="mxfp8",
    coefficients=(
        "attention_efficiency",
        "layer_launch_s",
        "expert_launch_s",
        "expert_efficiency",
        "expert_passes",
        "expert_exposed",
    ),
)
"""Megatron-Bridge's from 26.06 on: CUDA graphs of a whole step, fused grouped products, fp8 attention and overlapped
exchanges (NVIDIA-NeMo/Megatron-Bridge, pull requests 3983, 4226 and 4249 of June 2026)."""

FAMILIES = (
    TimeFamily(
        name="megatron",
        frameworks=("megatron",),
        fitted=DENSE | TENSOR | EXPERTS | {"layer_launch_s": 0.3, "handover_exposed": TRAFFIC},
        by_gpu=("gemm_efficiency", "attention_efficiency", "expert_launch_s"),
        pools=BLACKWELL,
        gpu_prior=0.15,
        by_release=("gemm_efficiency", "expert_efficiency", "expert_passes", "expert_launch_s"),
        recipes=(RECIPES_26_06,),
    ),
    TimeFamily(
        name="megatron-legacy",
        frameworks=("megatron-legacy", "megascale", "deepspeed"),
        fitted=DENSE | TENSOR,
    ),
    TimeFamily(
        name="megatron-deepspeed",
        frameworks=("megatron-deepspeed",),
        # A fork of the Megatron-LM of 2021, whose runs (Narayanan et al. 2021, Korthikanti et al. 2022, MegaScale) fit
        # to these. Their layers are too large to show the host: before them it took 2.8 ms, the geometric mean of
        # those that runs of other frameworks show (calibrate/defaults).
        start=TimeCoefficients(
            gemm_efficiency=0.739,
            attention_efficiency=0.310,
            hidden_passes=28.7,
            ffn_passes=16.3,
            logit_passes=24.1,
            layer_launch_s=2.2e-3,
            fast_efficiency=0.454,
            slow_efficiency=0.902,
            tensor_exposed=0.832,
            data_overlap=0.431,
            data_decay=0.248,
            optimizer_passes=36.0,
        ),
        fitted={name: prior / 2 for name, prior in (DENSE | TENSOR).items()} | {"layer_launch_s": LAUNCH},
        by_source=("gemm_efficiency",),
    ),
    TimeFamily(
        name="nanotron",
        frameworks=("nanotron",),
        start=NANOTRON_START,
        fitted=DENSE
        | {
            "layer_launch_s": LAUNCH,
            "stage_wait_s": LAUNCH,
            "network_wait_s": LAUNCH,
            "shard_penalty": TRAFFIC,
            "handover_wait_s": LAUNCH,
        },
    ),
    TimeFamily(
        name="llm-foundry",
        frameworks=("llm-foundry",),
        # Its layers are PyTorch's own, unfused: how often they pass over memory is not known beforehand.
        fitted=DENSE | dict.fromkeys(("hidden_passes", "ffn_passes", "logit_passes", "layer_launch_s"), LAUNCH),
        by_gpu=("gemm_efficiency", "attention_efficiency"),
    ),
    TimeFamily(
        name="fsdp",
        frameworks=("fsdp", "torchtitan", "torchtitan-compiled"),
        alike=("torchtitan-compiled",),
        # Their attention is PyTorch's, FlashAttention-2, as in nanotron and llm-foundry, whose runs on H100 fit to 0.14
        # and 0.16 (calibrate/defaults). Tensor parallelism sends between the products, unless it is asynchronous
        # (torchtitan, benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md).
        start=TimeCoefficients(attention_efficiency=0.15, tensor_exposed=1.0),
        fitted=DENSE | TENSOR | EXPERTS | {"layer_launch_s": LAUNCH},
        by_gpu=("gemm_efficiency",),
    ),
    TimeFamily(
        name="torchtitan-autocast",
        frameworks=("torchtitan-autocast", "torchtitan-eager"),
        # Without torch.compile each operation is a pass of its own. Measured on an H200, as all of these
        # (benchmarks/results/h200-torchtitan-rows-2026-11-17.csv); messages are as fitted to the published runs.
        start=TimeCoefficients(
            attention_efficiency=0.6,
            hidden_passes=150.0,
            query_passes=200.0,
            ffn_passes=40.0,
            logit_passes=60.0,
            optimizer_passes=45.0,
            layer_launch_s=2.8e-3,
            launch_again=0.9,
            # Selective recomputation asks a policy of every operation in Python; tensor parallelism runs DTensors.
            launch_selected=2.5,
            tensor_launch_s=1.0e-2,
            shard_launch_s=4.0e-3,
            fast_efficiency=0.65,
            slow_efficiency=1.0,
            tensor_exposed=1.0,
            data_overlap=0.6,
            data_decay=0.05,
        ),
        fitted={
            "gemm_efficiency": EFFICIENCY,
            "attention_efficiency": EFFICIENCY,
            **dict.fromkeys(("hidden_passes", "query_passes", "ffn_passes", "logit_passes"), LAUNCH),
            "optimizer_passes": 2 * PASSES,
            "step_overhead_s": LAUNCH,
            **HOST,
            "launch_selected": LAUNCH,
            "shard_launch_s": LAUNCH,
        },
        by_gpu=("gemm_efficiency",),
    ),
    TimeFamily(
        name="hf-accelerate",
        frameworks=("hf-accelerate",),
        # Layers of plain PyTorch: norms, rotary embedding and residuals are dozens of passes, some of them in fp32.
        start=TimeCoefficients(
            # Measured on an H200 (benchmarks/results/h200-landscapes-2026-11-17.csv), as all of these.
            hidden_passes=700.0,
            ffn_passes=50.0,
            # Eager attention scales, masks and casts scores to fp32 for the softmax and back, each a pass of its own.
            score_passes=90.0,
            optimizer_passes=75.0,
            layer_launch_s=3.3e-3,
            launch_again=0.9,
        ),
        fitted={name: 2 * prior for name, prior in DENSE.items() if "slow" not in name}
        | dict.fromkeys(("score_passes", "hidden_passes", "ffn_passes", "logit_passes"), LAUNCH)
        # Sequences of 2,048 hardly show how fast the attention kernel is.
        | {"attention_efficiency": EFFICIENCY, "layer_launch_s": LAUNCH, "launch_again": 0.25},
    ),
    TimeFamily(
        name="megatron-local",
        frameworks=("megatron-local",),
        # Nothing is fused: masks and softmax of attention are passes of their own, in fp32.
        start=TimeCoefficients(
            score_passes=80.0,
            # PyTorch's Adam, unfused, with fp32 copies of weights and gradients; measured as the launches are.
            optimizer_passes=110.0,
            # On the host of an H200 (benchmarks/results/h200-sweep-2026-11-16.csv): experts run one after another.
            layer_launch_s=6.0e-3,
            # Selective recomputation launches the core of attention again: about a third of a forward pass.
            launch_selected=0.15,
            tensor_launch_s=1.0e-3,
            expert_launch_s=3.0e-3,
            expert_product_s=1.2e-3,
        ),
        fitted={
            "gemm_efficiency": EFFICIENCY,
            **dict.fromkeys(("score_passes", "hidden_passes", "ffn_passes", "logit_passes"), LAUNCH),
            "optimizer_passes": PASSES,
            **HOST,
            "launch_selected": LAUNCH,
            "expert_launch_s": LAUNCH,
            "expert_product_s": LAUNCH,
        },
    ),
)


def family_of(framework: str) -> TimeFamily:
    """Return the family of a framework, or one that is never fitted where it has none."""
    known = (family for family in FAMILIES if framework in family.frameworks)
    return next(known, TimeFamily(name=framework, frameworks=(framework,)))
