"""Which communication a trial overlaps with compute: of data-parallel, tensor-parallel and expert-parallel ranks.

Each rule is one of validate_args or TransformerConfig of Megatron-LM main of 2026-08-22, unless it names releases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from zenith_tune.describe.megatron.args import MegatronArgs
from zenith_tune.describe.megatron_job_args import is_local
from zenith_tune.layouts.layout import Layout
from zenith_tune.presets.megatron_lm.job import MegatronJob
from zenith_tune.presets.megatron_lm.rules import EXPERT_OVERLAP
from zenith_tune.presets.megatron_lm_modules import captures_graphs, own_modules
from zenith_tune.presets.megatron_lm_switches import EP_OVERLAP, SWITCHES, TP_OVERLAP, WITH_STEP
from zenith_tune.presets.megatron_lm_tuned_layout import TunedLayout
from zenith_tune.study.parameters import Value

OVERLAPS = ("overlap", "tp_overlap", "ep_overlap")
GRADS, GATHER = "--overlap-grad-reduce", "--overlap-param-gather"
SWITCH = {"tp_overlap": TP_OVERLAP, "ep_overlap": EP_OVERLAP}
KINDS = ("params", "grads", "none")
DISPATCHERS = ("alltoall", "flex")
FIXED_BY = ("--delay-wgrad-compute", "--ep-overlap-early-attn-memory-release")
"""Switches that need the overlap of expert-parallel ranks, which then stays on."""
EXCLUDED_BY = (
    "--moe-shared-expert-overlap",
    "--moe-layer-recompute",
    "--overlap-dispatch-backward-with-experts-wgrad",
)
SAVES_PARAMS = "--save-params-interval"
PIPELINED_MTP = ((0, 16), (0, 17))
"""The releases that overlap multi-token prediction in a pipeline alone."""


def own_overlap(name: str, args: MegatronArgs) -> Value:
    """Return what a command overlaps.

    >>> own_overlap("overlap", MegatronArgs.of(["--overlap-grad-reduce"]))
    'grads'
    """
    if name != "overlap":
        return args.has(SWITCH[name])
    return "params" if args.has(GATHER) else "grads" if args.has(GRADS) else "none"


def overlap_values(name: str, job: MegatronJob, *, can_shard: bool) -> list[Value]:
    """Return what is tried: the command's own first, then what may go with some layout."""
    own = own_overlap(name, job.args)
    if name == "overlap":
        others: list[Value] = [kind for kind in KINDS if can_shard or kind != "params"]
    elif name == "tp_overlap":
        others = [False] if is_local(job.args) else [True, False]
    else:
        others = [True, False] if _may_overlap_experts(job) else []
    return [own, *(value for value in others if value != own)]


def overlap_reasons(name: str, job: MegatronJob, at: Layout) -> Iterator[str]:
    """Yield why what a point overlaps does not go with its layout, recomputation apart."""
    if not isinstance(at, TunedLayout):
        return
    if name == "overlap":
        yield from _data_parallel_reasons(job, at)
    elif getattr(at, name):
        yield from (f"{name} needs {need}" for need in _needs(name, job, at, about_recompute=False))


def recompute_reasons(job: MegatronJob, at: Layout) -> Iterator[str]:
    """Yield why what a point overlaps does not go with what it recomputes."""
    if not isinstance(at, TunedLayout) or not at.ep_overlap:
        return
    yield from (f"ep_overlap needs {need}" for need in _needs("ep_overlap", job, at, about_recompute=True))
    if at.module == "moe":
        yield "ep_overlap needs experts that are not recomputed, but got selective/moe"


def wanted_overlap(params: Mapping[str, Value]) -> dict[str, Value | None]:
    """Return the switches that a point turns on, and None for those that it takes away."""
    wanted: dict[str, Value | None] = {
        option: True if params[name] else None for name, option in SWITCH.items() if name in params
    }
    if "overlap" in params:
        wanted |= {GRADS: params["overlap"] != "none" or None, GATHER: params["overlap"] == "params" or None}
    return wanted


def _may_overlap_experts(job: MegatronJob) -> bool:
    """Tell whether the model and the command's other switches allow to overlap expert-parallel communication."""
    args, model = job.args, job.model
    if model is None or not job.has_experts or args.first(*FIXED_BY, *EXCLUDED_BY):
        return False
    return (
        job.rules.has(EXPERT_OVERLAP)
        and args.text("--moe-token-dispatcher-type") in DISPATCHERS
        and args.first("--bf16", "--fp16") is not None
        and model.num_mtp_layers <= 1
        and not is_local(args)
        and not captures_graphs(args)
        and "moe" not in own_modules(job)
    )


def _data_parallel_reasons(job: MegatronJob, at: TunedLayout) -> Iterator[str]:
    if at.overlap == "params" and not at.zero:
        yield "overlap params needs the distributed optimizer, but got zero 0"
    if at.overlap == "params" and job.args.has(SAVES_PARAMS):
        yield f"{SAVES_PARAMS} in your command needs overlap other than params"
    if at.overlap != "params" and job.args.has(WITH_STEP):
        yield f"{WITH_STEP} in your command needs overlap params, but got {at.overlap}"
    alone = at.dp * at.cp == 1 and (not job.has_experts or at.edp == 1)
    if alone and at.overlap != (only := _tried_alone(job, at)):
        yield f"overlap is without effect on one data-parallel rank: tried as {only}, but got {at.overlap}"


def _tried_alone(job: MegatronJob, at: Layout) -> Value:
    own = own_overlap("overlap", job.args)
    return "none" if own == "params" and not at.zero else own


def _needs(name: str, job: MegatronJob, at: Layout, *, about_recompute: bool) -> Iterator[str]:
    """Yield what the switch of an axis needs that a layout has not."""
    for switch in SWITCHES:
        is_asked = switch.option == SWITCH[name] and switch.about_recompute == about_recompute
        if is_asked and not switch.holds(at, job.start):
            yield switch.need
    has_mtp = job.model is not None and job.model.num_mtp_layers > 0
    if name == "ep_overlap" and not about_recompute and has_mtp and at.pp == 1 and job.rules.release in PIPELINED_MTP:
        yield f"pp above 1 with multi-token prediction in Megatron {'.'.join(map(str, job.rules.release))}"
