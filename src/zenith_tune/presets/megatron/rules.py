"""What Megatron-LM asks of a layout beyond the planner's rules, by its version and by the switches of the command.

Each rule is one of validate_args (megatron/training/arguments.py) or TransformerConfig of main of 2026-08-22, unless it
names releases. Legend: as in `layouts.rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from zenith_tune.describe.megatron.args import MegatronArgs
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.pipeline import is_accounted, is_laid_out, layers_per_chunk
from zenith_tune.layouts.rules import FULL, RULES, WHOLE_QUERY_GROUPS, JobFacts, LayoutRule, implies, rule_of
from zenith_tune.presets.megatron.job import FULL_SHARDING, MegatronJob, recompute_name
from zenith_tune.presets.megatron.options import EP_OVERLAP, GATHER, GRADS, TP_OVERLAP
from zenith_tune.presets.megatron.version import (
    ACCOUNTED,
    ACCOUNTED_EXPERTS,
    EXPERTS_WITH_CONTEXT,
    FOLDED_EXPERTS,
    LAID_OUT,
    SPREAD_GROUPS,
    VersionFeatures,
)
from zenith_tune.study.parameters import Value

if TYPE_CHECKING:
    from zenith_tune.describe.megatron.version import Release


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedLayout(Layout):
    """A layout with what the planner does not model: to it these are one layout, to a study different runs."""

    overlap: str = "none"
    """Of data-parallel communication with compute: none, grads, or params, which is both."""
    tp_overlap: bool = False
    ep_overlap: bool = False
    module: str = ""
    """The one that selective recomputation takes; empty for those that the command has."""

    @classmethod
    def of(cls, layout: Layout) -> Self:
        return cls(**{field.name: getattr(layout, field.name) for field in fields(layout)})


def planner_rules(job: MegatronJob) -> dict[str, list[LayoutRule]]:
    """Return the planner's rules by name, each with what the version asks beyond it."""
    found = {name: [rule] for name, rule in RULES.items()}
    features = job.features
    if not features.has(SPREAD_GROUPS):
        spread = replace(
            WHOLE_QUERY_GROUPS,
            message=lambda facts, at: features.lack(
                f"tp {at.tp} above {facts.num_query_groups} query groups", SPREAD_GROUPS
            ),
        )
        found["query_groups"].append(spread)
    accounted = ACCOUNTED_EXPERTS if job.has_experts else ACCOUNTED
    if not features.has(LAID_OUT):
        found["pipeline"].append(_split_rule(features, is_laid_out, LAID_OUT, " laid out", ""))
    if not features.has(accounted):
        counted = " with embedding and loss counted"
        found["pipeline"].append(_split_rule(features, is_accounted, accounted, "", counted))
    if job.has_custom_split:
        found["pipeline"] = [_but_for_own_split(rule, job.start) for rule in found["pipeline"]]
    return found


def _but_for_own_split(rule: LayoutRule, start: Layout) -> LayoutRule:
    return replace(rule, test=lambda facts, at: ((at.pp == start.pp) & (at.vp == start.vp)) | rule.test(facts, at))


def _split_rule(
    features: VersionFeatures, is_split: Callable[..., Any], first: Release, before: str, behind: str
) -> LayoutRule:
    """Return the rule that a pipeline needs no split which the version does not have."""

    def message(facts: JobFacts, at: Layout) -> str:
        return features.lack(f"{facts.num_layers} layers{before} over pp*vp = {at.pp}*{at.vp}{behind}", first)

    return LayoutRule(
        test=lambda facts, at: is_split(facts.num_layers, pp=at.pp, vp=at.vp) ^ True,
        message=message,
        asks=("num_layers",),
    )


def expert_rules(features: VersionFeatures) -> list[LayoutRule]:
    """Return what a version that does not fold experts over the dense ranks asks of their sizes."""
    if features.has(FOLDED_EXPERTS):
        return []
    found = [
        _plain(
            lambda at: at.etp == at.tp,
            lambda at: features.lack(f"etp {at.etp} other than tp {at.tp}", FOLDED_EXPERTS),
        ),
        _plain(
            lambda at: at.dp % at.ep == 0,
            lambda at: features.lack(f"ep {at.ep} that does not divide dp {at.dp}", FOLDED_EXPERTS),
        ),
    ]
    if not features.has(EXPERTS_WITH_CONTEXT):
        together = features.lack("ep and cp above 1 together", EXPERTS_WITH_CONTEXT)
        found.append(_plain(lambda at: (at.ep == 1) | (at.cp == 1), together))
    return found


def _plain(holds: Callable[[Any], Any], reason: str | Callable[[Any], str]) -> LayoutRule:
    """Return a rule about the layout alone, whose reason may name its values."""
    return LayoutRule(
        test=lambda facts, at: holds(at),
        message=lambda facts, at: reason if isinstance(reason, str) else reason(at),
    )


ETP_TRIED = rule_of(
    "etp_tried",
    "etp is tried as 1 and as tp unless search names it",
    lambda facts, at: (at.etp == 1) | (at.etp == at.tp),
    lambda facts, at: f"got {at.etp} with tp {at.tp}",
)
BLOCK_IN_CHUNK = LayoutRule(
    name="block_in_chunk",
    problem="a block of all layers of a chunk is full/uniform1",
    test=lambda facts, at: implies(
        at.recompute_is(("full/block",)),
        at.recompute_layers < layers_per_chunk(facts.num_layers, pp=at.pp, vp=at.vp),
    ),
    message=lambda facts, at: (
        f"{recompute_name(at)} recomputes all {layers_per_chunk(facts.num_layers or 0, pp=at.pp, vp=at.vp)} layers "
        "of a chunk, as full/uniform1 does"
    ),
    asks=("num_layers",),
)


CUT = ("tp", "pp", "vp", "cp", "ep", "etp")


def tried_rule(name: str, job: MegatronJob, *, is_whole: bool) -> LayoutRule:
    """Return the rule that an axis has the value that dominates the other, but for the command's own layout.

    Sharded over several ranks the optimizer sends no more and keeps less, and so does sequence parallelism. Before
    `is_whole`, micro-batch and recomputation are not chosen yet: every layout that is cut as the command's own holds.
    """
    start = job.start

    def best(at: Any) -> Any:
        if name == "zero":
            return (is_alone(at, has_experts=job.has_experts) ^ True) * 1
        return job.sequence_parallel(tp=at.tp, cp=at.cp)

    def is_own(at: Any) -> Any:
        same: Any = True
        for size in (*CUT, "micro_batch", "recompute_layers") if is_whole else CUT:
            same = (getattr(at, size) == getattr(start, size)) & same
        return same & at.recompute_is((start.recompute,)) if is_whole else same

    return rule_of(
        f"{name}_tried",
        f"{name} is tried at its best alone, unless search names it",
        lambda facts, at: (getattr(at, name) == best(at)) | is_own(at),
        lambda facts, at: f"got {getattr(at, name)} in place of {best(at)}",
    )


def is_alone(at: Any, *, has_experts: bool) -> Any:
    """Return whether no other rank holds the same weights, so that there is nothing to share or to sum."""
    return (at.dp * at.cp == 1) & ((at.edp == 1) | (not has_experts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """An option and what it needs; `values` are those that need it, none for whatever it is set to."""

    option: str
    need: str
    holds: Callable[..., Any]
    """Whether a layout, or which of a batch, will do, given the one that the command has."""
    values: tuple[str, ...] = ()
    about_recompute: bool = False

    def is_in(self, args: MegatronArgs) -> bool:
        """Return whether a command has the switch; one that is set to 0 is off."""
        value = args.text(self.option)
        return args.has(self.option) and (value in self.values if self.values else value != "0")

    def rule(self, start: Layout) -> LayoutRule:
        """Return what the switch asks in a command that has the layout `start`."""
        reason = f"{' '.join((self.option, *self.values[:1]))} in your command needs {self.need}"
        return _plain(lambda at: self.holds(at, start), reason)


def _is_uncut(at: Any, start: Layout) -> Any:
    """Return whether no size is one that the command does not have itself."""
    uncut: Any = True
    for size in ("tp", "pp", "cp", "ep"):
        uncut = ((getattr(at, size) == 1) | (getattr(at, size) == getattr(start, size))) & uncut
    return uncut


WITH_STEP, OFFLOADING = "--overlap-param-gather-with-optimizer-step", "--cpu-offloading-num-layers"
SWITCHES: tuple[Switch, ...] = (
    Switch(option="--transformer-impl", values=("local",), need="cp 1", holds=lambda at, start: at.cp == 1),
    Switch(option=TP_OVERLAP, need="sequence parallelism", holds=lambda at, start: at.sequence_parallel),
    Switch(option="--defer-embedding-wgrad-compute", need="pp above 1", holds=lambda at, start: at.pp > 1),
    Switch(
        option="--no-overlap-p2p-communication",
        need="vp 1, or pp above 2",
        holds=lambda at, start: (at.vp == 1) | (at.pp > 2),
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
        holds=lambda at, start: (at.pp == 1) | (at.dp == at.edp),
    ),
    *(
        Switch(option=option, need=need, holds=holds)
        for option in FULL_SHARDING
        for need, holds in (
            ("tp, pp, cp and ep 1, or as they are", _is_uncut),
            ("the distributed optimizer as it is", lambda at, start: at.zero == start.zero),
        )
    ),
    Switch(option=EP_OVERLAP, need="ep above 1", holds=lambda at, start: at.ep > 1),
    Switch(option=EP_OVERLAP, need="vp above 1 where pp is", holds=lambda at, start: (at.pp == 1) | (at.vp > 1)),
    Switch(
        option=EP_OVERLAP,
        need="no full recomputation",
        holds=lambda at, start: at.recompute_is(FULL) ^ True,
        about_recompute=True,
    ),
    Switch(option=OFFLOADING, need="pp 1", holds=lambda at, start: at.pp == 1),
    Switch(
        option=OFFLOADING,
        need="no recomputation",
        holds=lambda at, start: at.recompute_is(("none",)),
        about_recompute=True,
    ),
    Switch(
        option="--distribute-saved-activations",
        need="full recomputation and tp above 1 without sequence parallelism",
        holds=lambda at, start: at.recompute_is(FULL) & (at.tp > 1) & (at.sequence_parallel ^ True),
        about_recompute=True,
    ),
    *(
        Switch(
            option=option,
            values=values,
            need="no full recomputation",
            holds=lambda at, start: at.recompute_is(FULL) ^ True,
            about_recompute=True,
        )
        for option, values in (
            ("--enable-cuda-graph", ()),
            ("--external-cuda-graph", ()),
            ("--cuda-graph-impl", ("local",)),
            ("--cuda-graph-impl", ("transformer_engine",)),
            ("--moe-layer-recompute", ()),
        )
    ),
)


def switches_in(args: MegatronArgs) -> tuple[Switch, ...]:
    """Return the switches that a command has."""
    return tuple(switch for switch in SWITCHES if switch.is_in(args))


OVERLAPS = ("overlap", "tp_overlap", "ep_overlap")
SWITCH = {"tp_overlap": TP_OVERLAP, "ep_overlap": EP_OVERLAP}
SAVES_PARAMS = "--save-params-interval"
PIPELINED_MTP = ((0, 16), (0, 17))
"""The releases that overlap multi-token prediction in a pipeline alone."""


def own_overlap(name: str, args: MegatronArgs) -> Value:
    """Return what a command overlaps."""
    if name != "overlap":
        return args.has(SWITCH[name])
    return "params" if args.has(GATHER) else "grads" if args.has(GRADS) else "none"


def overlap_recompute_rules(job: MegatronJob) -> list[LayoutRule]:
    """Return what a searched overlap of experts asks of recomputation."""
    moe = _plain(
        lambda at: implies(at.ep_overlap, at.module != "moe"),
        "ep_overlap needs experts that are not recomputed, but got selective/moe",
    )
    return [*_switched_rules("ep_overlap", job, about_recompute=True), moe]


def overlap_rules(name: str, job: MegatronJob) -> list[LayoutRule]:
    """Return what a searched overlap asks of a layout, recomputation apart."""
    if name != "overlap":
        return list(_switched_rules(name, job, about_recompute=False))
    found = [
        _plain(
            lambda at: implies(at.overlap == "params", at.zero > 0),
            "overlap params needs the distributed optimizer, but got zero 0",
        )
    ]
    if job.args.has(SAVES_PARAMS):
        reason = f"{SAVES_PARAMS} in your command needs overlap other than params"
        found.append(_plain(lambda at: at.overlap != "params", reason))
    if job.args.has(WITH_STEP):
        found.append(
            _plain(
                lambda at: at.overlap == "params",
                lambda at: f"{WITH_STEP} in your command needs overlap params, but got {at.overlap}",
            )
        )
    own, has_experts = str(own_overlap("overlap", job.args)), job.has_experts

    def is_own(at: Any) -> Any:
        if own != "params":
            return at.overlap == own
        return ((at.overlap == own) & (at.zero > 0)) | ((at.overlap == "none") & (at.zero == 0))

    def message(at: TunedLayout) -> str:
        tried = "none" if own == "params" and not at.zero else own
        return f"overlap is without effect on one data-parallel rank: tried as {tried}, but got {at.overlap}"

    # One data-parallel rank, which has nothing to overlap, is tried in one way.
    return [*found, _plain(lambda at: implies(is_alone(at, has_experts=has_experts), is_own(at)), message)]


def _switched_rules(name: str, job: MegatronJob, *, about_recompute: bool) -> Iterator[LayoutRule]:
    """Yield what the switch of an axis asks where a point has it on."""
    for switch in SWITCHES:
        if switch.option == SWITCH[name] and switch.about_recompute == about_recompute:
            yield _where_on(name, switch.need, partial(switch.holds, start=job.start))
    has_mtp = job.model is not None and job.model.num_mtp_layers > 0
    release = job.features.release
    if name == "ep_overlap" and not about_recompute and has_mtp and release in PIPELINED_MTP:
        what = f"pp above 1 with multi-token prediction in Megatron {'.'.join(map(str, release))}"
        yield _where_on(name, what, lambda at: at.pp > 1)


def _where_on(name: str, need: str, holds: Callable[[Any], Any]) -> LayoutRule:
    return _plain(lambda at: implies(getattr(at, name), holds(at)), f"{name} needs {need}")
