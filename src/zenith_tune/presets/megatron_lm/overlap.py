"""Which communication a trial overlaps with compute: of data-parallel, tensor-parallel and expert-parallel ranks.

Each rule is one of validate_args or TransformerConfig of Megatron-LM main of 2026-08-22, unless it names releases.

What switches that stand in the user's command ask of a layout: Megatron-LM refuses to start with any other.

Each is checked by megatron/training/arguments.py (validate_args) or TransformerConfig of main of 2026-08-22.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Self

from zenith_tune.describe.megatron.args import MegatronArgs, is_local
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.layouts.layout import Layout
from zenith_tune.presets.megatron_lm.job import MegatronJob
from zenith_tune.presets.megatron_lm.rules import EXPERT_OVERLAP, MODULES, SHARED_EXPERTS
from zenith_tune.study.parameters import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedLayout(Layout):
    """Hold what the planner cannot tell apart: to it they are one layout, to a study they are different runs."""

    overlap: str = "none"
    """Of data-parallel communication with compute: none, grads, or params, which is both."""
    tp_overlap: bool = False
    ep_overlap: bool = False
    module: str = ""
    """The one that selective recomputation takes; empty for those that the command has."""

    @classmethod
    def of(cls, layout: Layout) -> Self:
        """Return a layout with nothing beside it."""
        return cls(**{field.name: getattr(layout, field.name) for field in fields(layout)})


Holds = Callable[[Layout, Layout], bool]
"""Whether a layout will do, given the one that the command has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """Hold an option and its need; `values` are those that need it, none for whatever it is set to."""

    option: str
    need: str
    holds: Holds
    values: tuple[str, ...] = ()
    about_recompute: bool = False

    def is_in(self, args: MegatronArgs) -> bool:
        """Tell whether a command has the switch; one that is set to 0 is off."""
        value = args.text(self.option)
        return args.has(self.option) and (value in self.values if self.values else value != "0")

    def reason(self, at: Layout, start: Layout) -> str | None:
        """Return why a layout will not do."""
        if self.holds(at, start):
            return None
        return f"{' '.join((self.option, *self.values[:1]))} in your command needs {self.need}"


def _is_full(at: Layout) -> bool:
    return at.recompute.startswith("full")


TP_OVERLAP, EP_OVERLAP = "--tp-comm-overlap", "--overlap-moe-expert-parallel-comm"
WITH_STEP, OFFLOADING = "--overlap-param-gather-with-optimizer-step", "--cpu-offloading-num-layers"
_GRAPHS = (("--enable-cuda-graph", ()), ("--external-cuda-graph", ()), ("--cuda-graph-impl", ("local",)))
SWITCHES: tuple[Switch, ...] = (
    Switch(option="--transformer-impl", values=("local",), need="cp 1", holds=lambda at, start: at.cp == 1),
    Switch(option=TP_OVERLAP, need="sequence parallelism", holds=lambda at, start: at.sequence_parallel),
    Switch(option="--defer-embedding-wgrad-compute", need="pp above 1", holds=lambda at, start: at.pp > 1),
    Switch(
        option="--no-overlap-p2p-communication",
        need="vp 1, or pp above 2",
        holds=lambda at, start: at.vp == 1 or at.pp > 2,
    ),
    Switch(option=WITH_STEP, need="vp above 1", holds=lambda at, start: at.vp > 1),
    *(
        Switch(option=option, need="the distributed optimizer", holds=lambda at, start: at.zero > 0)
        for option in (WITH_STEP, "--fp8-param-gather")
    ),
    Switch(
        option="--hierarchical-context-parallel-sizes",
        need="cp as it is",
        holds=lambda at, start: at.cp == start.cp,
    ),
    Switch(
        option="--use-tp-pp-dp-mapping",
        need="dp equal to edp where pp is above 1",
        holds=lambda at, start: at.pp == 1 or at.dp == at.edp,
    ),
    Switch(option=EP_OVERLAP, need="ep above 1", holds=lambda at, start: at.ep > 1),
    Switch(option=EP_OVERLAP, need="vp above 1 where pp is", holds=lambda at, start: at.pp == 1 or at.vp > 1),
    Switch(
        option=EP_OVERLAP,
        need="no full recomputation",
        holds=lambda at, start: not _is_full(at),
        about_recompute=True,
    ),
    Switch(option=OFFLOADING, need="pp 1", holds=lambda at, start: at.pp == 1),
    Switch(
        option=OFFLOADING,
        need="no recomputation",
        holds=lambda at, start: at.recompute == "none",
        about_recompute=True,
    ),
    Switch(
        option="--distribute-saved-activations",
        need="full recomputation and tp above 1 without sequence parallelism",
        holds=lambda at, start: _is_full(at) and at.tp > 1 and not at.sequence_parallel,
        about_recompute=True,
    ),
    *(
        Switch(
            option=option,
            values=values,
            need="no full recomputation",
            holds=lambda at, start: not _is_full(at),
            about_recompute=True,
        )
        for option, values in (
            *_GRAPHS,
            ("--cuda-graph-impl", ("transformer_engine",)),
            ("--moe-layer-recompute", ()),
        )
    ),
)


def switches_in(args: MegatronArgs) -> tuple[Switch, ...]:
    """Return the switches that a command has.

    >>> [switch.need for switch in switches_in(MegatronArgs.of(["--tp-comm-overlap", "--bf16"]))]
    ['sequence parallelism']
    """
    return tuple(switch for switch in SWITCHES if switch.is_in(args))


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
SIXTEEN_BITS_OR_MORE = ("fp32", "bf16", "fp16")

Goes = Callable[[MegatronJob, ModelSpec], bool]


def _has_dense_layers(job: MegatronJob, model: ModelSpec) -> bool:
    return model.num_moe_layers < model.num_layers


def _has_norms_of_their_own(job: MegatronJob, model: ModelSpec) -> bool:
    """Tell whether norms stand alone: Transformer Engine has those of dense layers inside the next matrix product."""
    return _has_no_fp8(job) and (job.has_experts or model.latent_attention is not None or is_local(job.args))


def _has_grouped_experts(job: MegatronJob, model: ModelSpec) -> bool:
    return _has_no_fp8(job) and job.has_experts and job.args.has("--moe-grouped-gemm") and not is_local(job.args)


def _has_no_fp8(job: MegatronJob) -> bool:
    """Tell whether nothing is below 16 bits, where some recipes and older Transformer Engines refuse the module."""
    return job.job.precision in SIXTEEN_BITS_OR_MORE


def _has_shared_experts(job: MegatronJob, model: ModelSpec) -> bool:
    is_known = job.rules.has(SHARED_EXPERTS)
    return is_known and model.shared_ffn_hidden > 0 and not job.args.has("--moe-shared-expert-overlap")


MODULE_GOES: Mapping[str, Goes] = {
    "mlp": _has_dense_layers,
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
        or not job.rules.has(MODULES)
        or job.args.first(*MODULES_EXCLUDED_BY)
        or captures_graphs(job.args)
    ):
        return []
    own = own_modules(job)
    names = [name for name, goes in MODULE_GOES.items() if goes(job, job.model) and own != (name,)]
    return [f"{SELECTIVE}{name}" for name in names]


def module_of(recompute: str) -> str:
    """Return the module that a kind of recomputation names.

    >>> module_of("selective/mlp"), module_of("full/block4")
    ('mlp', '')
    """
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
    """Tell whether a command captures CUDA graphs, whose parts must not be recomputed."""
    return args.first(*GRAPHS) is not None or args.text("--cuda-graph-impl") not in (None, "none")


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
