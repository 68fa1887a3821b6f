"""What is tried besides the layout: communication that is overlapped with compute, and modules that are recomputed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from zenith_tune.describe.megatron.args import MegatronArgs, is_local
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.presets.megatron.job import MegatronJob
from zenith_tune.presets.megatron.options import GATHER, GRADS
from zenith_tune.presets.megatron.rules import SWITCH, own_overlap
from zenith_tune.presets.megatron.version import EXPERT_OVERLAP, MODULES, SHARED_EXPERTS
from zenith_tune.study.parameters import Value

OPTION = "--recompute-modules"
SELECTIVE = "selective/"
GRAPHS = ("--enable-cuda-graph", "--external-cuda-graph")
MODULES_EXCLUDED_BY = (
    "--moe-layer-recompute",
    "--fine-grained-activation-offloading",
    "--enable-mhc-connections",
    "--use-transformer-engine-op-fuser",
)
"""Switches that ask for other modules than those that are tried here."""

Goes = Callable[[MegatronJob, ModelSpec], bool]


def _has_norms_of_their_own(job: MegatronJob, model: ModelSpec) -> bool:
    """Return whether norms stand alone: Transformer Engine has those of dense layers inside the next matrix product."""
    return _has_no_fp8(job) and (job.has_experts or model.latent_attention is not None or is_local(job.args))


def _has_grouped_experts(job: MegatronJob, model: ModelSpec) -> bool:
    return _has_no_fp8(job) and job.has_experts and job.args.has("--moe-grouped-gemm") and not is_local(job.args)


def _has_no_fp8(job: MegatronJob) -> bool:
    """Return whether nothing is below 16 bits, where some recipes and older Transformer Engines refuse the module."""
    return job.job.precision in ("fp32", "bf16", "fp16")


def _has_shared_experts(job: MegatronJob, model: ModelSpec) -> bool:
    is_known = job.features.has(SHARED_EXPERTS)
    return is_known and model.shared_ffn_hidden > 0 and not job.args.has("--moe-shared-expert-overlap")


MODULE_GOES: Mapping[str, Goes] = {
    "mlp": lambda job, model: model.num_moe_layers < model.num_layers,
    "moe": lambda job, model: job.has_experts,
    "moe_act": _has_grouped_experts,
    "shared_experts": _has_shared_experts,
    "layernorm": _has_norms_of_their_own,
    "mla_up_proj": lambda job, model: model.latent_attention is not None,
}


def module_values(job: MegatronJob) -> list[str]:
    """Return the kinds of selective recomputation with one module each, but for the command's own."""
    if (
        job.model is None
        or not job.features.has(MODULES)
        or job.args.first(*MODULES_EXCLUDED_BY)
        or captures_graphs(job.args)
    ):
        return []
    own = own_modules(job)
    names = [name for name, goes in MODULE_GOES.items() if goes(job, job.model) and own != (name,)]
    return [f"{SELECTIVE}{name}" for name in names]


def module_of(recompute: str) -> str:
    """Return the module that a kind of recomputation names."""
    return recompute.removeprefix(SELECTIVE) if recompute.startswith(SELECTIVE) else ""


def own_modules(job: MegatronJob) -> tuple[str, ...]:
    """Return the modules that a command itself names."""
    words = job.run.arguments if job.run is not None else ()
    found: tuple[str, ...] = ()
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == OPTION:
            behind = words[index + 1 :]
            end = next((i for i, each in enumerate(behind) if each.startswith("--")), len(behind))
            found = (value,) if equals else behind[:end]
    return found


def captures_graphs(args: MegatronArgs) -> bool:
    """Return whether a command captures CUDA graphs, whose parts must not be recomputed."""
    return args.first(*GRAPHS) is not None or args.text("--cuda-graph-impl") not in (None, "none")


DISPATCHERS = ("alltoall", "flex")
FIXED_BY = ("--delay-wgrad-compute", "--ep-overlap-early-attn-memory-release")
"""Switches that need the overlap of expert-parallel ranks, which then stays on."""
EXCLUDED_BY = (
    "--moe-shared-expert-overlap",
    "--moe-layer-recompute",
    "--overlap-dispatch-backward-with-experts-wgrad",
)


def overlap_values(name: str, job: MegatronJob, *, can_shard: bool) -> list[Value]:
    """Return what is tried: the command's own first, then what may go with some layout."""
    own = own_overlap(name, job.args)
    if name == "overlap":
        others: list[Value] = ["params", "grads", "none"] if can_shard else ["grads", "none"]
    elif name == "tp_overlap":
        others = [False] if is_local(job.args) else [True, False]
    else:
        exchanges = job.args.text("--moe-token-dispatcher-type") in DISPATCHERS
        others = [True, False] if exchanges and could_overlap_experts(job) else []
    return [own, *(value for value in others if value != own)]


def wanted_overlap(params: Mapping[str, Value]) -> dict[str, Value | None]:
    """Return the switches that a point turns on, and None for those that it takes away."""
    wanted: dict[str, Value | None] = {
        option: True if params[name] else None for name, option in SWITCH.items() if name in params
    }
    if "overlap" in params:
        wanted |= {GRADS: params["overlap"] != "none" or None, GATHER: params["overlap"] == "params" or None}
    return wanted


def could_overlap_experts(job: MegatronJob) -> bool:
    """Return whether model and switches allow to overlap expert-parallel communication, whatever the dispatcher is."""
    args, model = job.args, job.model
    if model is None or not job.has_experts or args.first(*FIXED_BY, *EXCLUDED_BY):
        return False
    return (
        job.features.has(EXPERT_OVERLAP)
        and args.first("--bf16", "--fp16") is not None
        and model.num_mtp_layers <= 1
        and not is_local(args)
        and not captures_graphs(args)
        and "moe" not in own_modules(job)
    )
