"""Levers of kernels and of the host that launches them: fused ones, grouped experts, CUDA graphs, numerics."""

from __future__ import annotations

from dataclasses import replace

from zenith_tune.hooks.packages import FUSED_GRADIENTS, FUSED_SOFTMAX
from zenith_tune.presets.levers import ASSUMED
from zenith_tune.presets.megatron.levers.declaration import BRIDGE, Goes, MegatronLever, Situation, has_adam
from zenith_tune.presets.megatron.overlap import captures_graphs
from zenith_tune.study.parameters import Value


def _is_bf16(at: Situation) -> bool:
    return at.has_engine and at.job.job.precision == "bf16"


def _has_fp8(at: Situation) -> bool:
    return _is_bf16(at) and (at.subject is None or at.subject.cluster.gpu.fp8_flops > 0)


def _has_fp4(at: Situation) -> bool:
    """Return whether the GPUs are of the generation that has fp4, and scales blocks of 32 in hardware (Blackwell)."""
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


FUSED_LOSS = MegatronLever(
    name="loss_fusion",
    value="native",
    sets={"--cross-entropy-loss-fusion": True},
    saves={"compute": 0.02},
    memory=0.08,
    source="an H200 of ours, dense 1.5B and 8 experts of 3.1B: 649 to 637, 674 to 651 ms; memory +10% and +7%",
)


def _can_fuse_rotation(at: Situation) -> bool:
    """Return whether rotary positions have a fused kernel; that of latent attention is experimental."""
    model, args = at.job.model, at.job.args
    is_plain = model is not None and model.latent_attention is None and not args.has("--rotary-interleaved")
    return at.has_engine and is_plain and args.text("--position-embedding-type") == "rope"


def _fused_again(
    name: str,
    option: str,
    dumped: str,
    saved: float,
    goes: Goes = lambda at: at.has_engine,
    package: str | None = None,
) -> MegatronLever:
    """Declare a fused kernel that the command has switched off."""
    return MegatronLever(
        name=name,
        sets={option: None},
        dumped={dumped: True},
        goes=lambda at: at.job.args.has(option) and goes(at),
        package=package,
        saves={"compute": saved},
        source=ASSUMED,
    )


def _runs_experts(at: Situation) -> bool:
    return at.job.has_experts and at.has_engine


KERNEL_LEVERS = (
    MegatronLever(
        name="grouped_experts",
        sets={"--moe-grouped-gemm": True},
        goes=lambda at: _runs_experts(at) and at.job.job.precision != "fp32",
        saves={"compute": 0.1, "overhead": 0.3},
        source="marin issue 4311: 0.476 to 0.376 s on a GH200, together with Transformer Engine and both fusions",
    ),
    MegatronLever(
        name="permute_fusion",
        sets={"--moe-permute-fusion": True},
        first=(0, 11),
        goes=lambda at: _runs_experts(at) and at.dispatcher != "alltoall_seq",
        excluded_by=("--batch-invariant-mode",),
        saves={"compute": 0.03, "overhead": 0.1},
        source=f"{ASSUMED}; marin issue 4311 has it among others",
    ),
    MegatronLever(
        name="router_fusion",
        sets={"--moe-router-fusion": True},
        first=(0, 14),
        goes=_runs_experts,
        saves={"compute": 0.01, "overhead": 0.05},
        source=f"{ASSUMED}; marin issue 4311 has it among others",
    ),
    MegatronLever(
        name="loss_fusion",
        value="te",
        sets={"--cross-entropy-loss-fusion": True, "--cross-entropy-fusion-impl": "te"},
        first=(0, 12),
        last=(0, 17),
        goes=lambda at: at.has_engine,
        excluded_by=("--cross-entropy-fusion-impl",),
        saves={"compute": 0.02},
        memory=-0.04,
        source="AMD, Primus pull request 182: 210.7 to 215.3 TFLOP/s and 127.7 to 121.6 GB for DeepSeek-V2-Lite",
    ),
    replace(FUSED_LOSS, last=(0, 11)),
    # Where there is no other kernel, or the command names this one.
    replace(
        FUSED_LOSS,
        first=(0, 12),
        last=(0, 17),
        goes=lambda at: not at.has_engine or at.job.args.text("--cross-entropy-fusion-impl") == "native",
    ),
    replace(
        FUSED_LOSS,
        first=(0, 18),
        sets={"--cross-entropy-loss-fusion": True, "--cross-entropy-fusion-impl": "native"},
    ),
    MegatronLever(
        name="attention",
        value="flash",
        sets={"--attention-backend": "flash"},
        first=(0, 11),
        goes=lambda at: at.has_engine and at.job.args.text("--attention-backend") == "unfused",
        dumped={"attention_backend": "AttnBackend.flash"},
        saves={"compute": 0.1},
        memory=-0.1,
        source=f"{ASSUMED}; it grows with the sequence",
    ),
    _fused_again(
        "softmax_fusion",
        "--no-masked-softmax-fusion",
        "masked_softmax_fusion",
        0.03,
        goes=lambda at: not at.has_engine,
        package=FUSED_SOFTMAX,
    ),
    _fused_again(
        "swiglu_fusion", "--no-bias-swiglu-fusion", "bias_swiglu_fusion", 0.02, lambda at: at.job.args.has("--swiglu")
    ),
    # Without a bias Megatron switches it off.
    _fused_again(
        "gelu_fusion",
        "--no-bias-gelu-fusion",
        "bias_gelu_fusion",
        0.02,
        lambda at: not at.job.args.first("--disable-bias-linear", "--swiglu", "--squared-relu"),
    ),
    _fused_again("dropout_fusion", "--no-bias-dropout-fusion", "bias_dropout_fusion", 0.01, lambda at: True),
    _fused_again("rope_fusion", "--no-rope-fusion", "apply_rope_fusion", 0.01, _can_fuse_rotation),
    _fused_again(
        "gradient_fusion",
        "--no-gradient-accumulation-fusion",
        "gradient_accumulation_fusion",
        0.03,
        package=FUSED_GRADIENTS,
    ),
)


def _can_capture(at: Situation) -> bool:
    segments = at.variable("PYTORCH_CUDA_ALLOC_CONF")
    is_free = at.layout.recompute == "none" and not captures_graphs(at.job.args)
    return at.has_engine and is_free and "expandable_segments:True" not in segments


LAYER_GRAPHS = MegatronLever(
    name="cuda_graphs",
    value="local",
    sets={"--cuda-graph-impl": "local", "--te-rng-tracker": True},
    first=(0, 15),
    # Experts wait for the host to learn how many tokens they get.
    goes=lambda at: _can_capture(at) and not at.job.has_experts,
    excluded_by=("--cpu-offloading-num-layers",),
    excludes=frozenset({"ep_overlap", "delay_wgrad", "modules"}),
    saves={"overhead": 0.8},
    memory=0.1,
    is_alone=True,
    source=f"{ASSUMED}; {BRIDGE}: 41.4 to 42.0 s for Qwen3-30B, whose host is not what it waits for",
)
ATTENTION_GRAPHS = replace(
    LAYER_GRAPHS, value="transformer_engine", goes=_can_capture, saves={"overhead": 0.4}, memory=0.05
)
TE_GRAPHS: dict[str, Value | None] = {"--cuda-graph-impl": "transformer_engine", "--te-rng-tracker": True}
GRAPHS_DUMPED = {"cuda_graph_impl": "transformer_engine"}
HOST_LEVERS = (
    replace(LAYER_GRAPHS, sets={"--enable-cuda-graph": True, "--te-rng-tracker": True}, first=(0, 11), last=(0, 14)),
    LAYER_GRAPHS,
    replace(
        ATTENTION_GRAPHS,
        sets={"--external-cuda-graph": True, "--cuda-graph-scope": "attn", "--te-rng-tracker": True},
        first=(0, 12),
        last=(0, 14),
    ),
    replace(ATTENTION_GRAPHS, sets={**TE_GRAPHS, "--cuda-graph-scope": "attn"}, last=(0, 17), dumped=GRAPHS_DUMPED),
    replace(ATTENTION_GRAPHS, sets={**TE_GRAPHS, "--cuda-graph-modules": "attn"}, first=(0, 18), dumped=GRAPHS_DUMPED),
    MegatronLever(
        name="manual_gc",
        sets={"--manual-gc": True, "--manual-gc-interval": 100},
        goes=lambda at: at.layout.num_gpus > 1,
        excluded_by=("--manual-gc",),
        saves={"overhead": 0.1, "compute": 0.003},
        source=f"{ASSUMED}; Megatron-Bridge has it on",
    ),
)
