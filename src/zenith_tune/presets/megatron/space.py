"""The points of a Megatron-LM job that are worth a trial, by the planner's own rules and the command's switches.

Legend: tp tensor, pp pipeline, cp context, ep expert and etp expert tensor parallel sizes; vp model chunks per pipeline
rank; mbs samples per micro-batch, gbs per step.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

from zenith_tune.describe.megatron.args import is_local
from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.layouts.layout import Layout, divisors, parse_values
from zenith_tune.layouts.pipeline import is_laid_out, layers_per_chunk
from zenith_tune.layouts.rules import LayoutRule, first_reason, legal
from zenith_tune.layouts.search_space import SearchSpace
from zenith_tune.presets.framework_preset import JobSpace
from zenith_tune.presets.megatron.job import AS_IS, BALANCED, FULLY_SHARDED, MegatronJob, recompute_name
from zenith_tune.presets.megatron.options import ROUTED
from zenith_tune.presets.megatron.overlap import module_of, module_values, overlap_values
from zenith_tune.presets.megatron.rules import (
    BLOCK_IN_CHUNK,
    ETP_TRIED,
    OVERLAPS,
    SWITCH,
    TunedLayout,
    expert_rules,
    overlap_recompute_rules,
    overlap_rules,
    own_overlap,
    planner_rules,
    switches_in,
    tried_rule,
)
from zenith_tune.study.parameters import CategoricalParameter, Params, Value

if TYPE_CHECKING:
    from zenith_tune.layouts.layout_batch import BoolArray, LayoutBatch, PointTable

ALWAYS = ("tp", "pp", "vp", "cp", "ep", "etp", "mbs", "recompute")
MODULES = "modules"
"""Asks for more kinds of `recompute`; no axis of its own."""
DOMINATED = ("zero", "sequence_parallel")
"""Searched where the command has them off and they can be on; off is then tried for the command's own layout alone."""
ON_REQUEST = (*DOMINATED, *OVERLAPS, MODULES)
DEFAULT = "default"
LONG_SEQUENCE = 16_384
"""Tokens from which on context parallelism is searched without being asked for."""
STAGES: Mapping[str, tuple[str, ...]] = {
    "tp": ("heads", "query_groups", "ffn"),
    "pp": ("world",),
    "vp": ("pipeline", "interleaving"),
    "cp": ("world", "context"),
    "ep": ("experts",),
    "etp": ("expert_world", "expert_tensor", "expert_bias"),
    "zero": ("zero_pipeline", "zero_stage"),
    "overlap": (),
    "sequence_parallel": ("sequence_parallel", "sequence_chunks", "expert_sequence"),
    "tp_overlap": (),
    "ep_overlap": (),
    "mbs": ("batch", "interleaved_batches", "schedule"),
    "recompute": ("recompute_takes", "recompute_chunk", "split_keeps_all", "framework"),
    ROUTED: (),
}
"""In the order in which a point is put together: the rules that can be checked once a value is chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchLimits:
    """The axes that the user wants searched, and how far."""

    search: str = DEFAULT
    """Axes with a plus or a comma between them; `default` stands for those that are searched without it."""
    tp_max: int = 64
    mbs_max: int = 16


class PointSpace(JobSpace, Protocol):
    """A space whose points are made many at a time, without those that break a rule."""

    def tables(self) -> Iterator[PointTable]:
        """Yield the points that break no rule, many at a time."""

    def points(self) -> Iterator[Params]:
        return (table.point(row) for table in self.tables() for row in range(len(table)))


class MegatronLmSpace(PointSpace):
    """The choices of one job, and the rules that its points must keep."""

    def __init__(
        self, job: MegatronJob, limits: SearchLimits, *, recorded: Mapping[str, Sequence[Value]] | None = None
    ) -> None:
        """Take the choices that a study was recorded with in place of those that this release would make."""
        self.job, self._limits = job, limits
        names = set(search_names(limits.search))
        names |= {"recompute"} if MODULES in names else set()
        self.searched = (names - {DEFAULT}) | (_usual(job) if DEFAULT in names else set())
        if recorded is not None:
            self.job = job if ROUTED in recorded else replace(job, routing=AS_IS)
            self.searched -= {*DOMINATED} - recorded.keys()
        self._start = TunedLayout.of(job.start) if self.searched & {*OVERLAPS, MODULES} else job.start
        self._facts, self._rules = job.facts, planner_rules(job)
        self._own_rules, self._recompute_rules = self._command_rules()
        self._tried_rules = self._dominance_rules()
        self._overlap_rules = {name: overlap_rules(name, job) for name in OVERLAPS if name in self.searched}
        known = self._choices() if recorded is None else recorded
        self.choices: dict[str, tuple[Value, ...]] = {name: tuple(known[name]) for name in STAGES if name in known}

    def _command_rules(self) -> tuple[list[LayoutRule], list[LayoutRule]]:
        """Return what the command and its version ask: of sizes, and of recomputation."""
        job, decided = self.job, {SWITCH[name] for name in self.searched if name in SWITCH}
        switches = [switch for switch in switches_in(job.args) if switch.option not in decided]
        # Between 1 and tp it lies between these two, beyond it cuts experts with more traffic than ep does.
        tries_every_etp = "etp" not in self.searched or "etp" in search_names(self._limits.search)
        own = [] if tries_every_etp else [ETP_TRIED]
        own += expert_rules(job.features) if job.has_experts else []
        own += [switch.rule(job.start) for switch in switches if not switch.about_recompute]
        recompute = [switch.rule(job.start) for switch in switches if switch.about_recompute]
        recompute += overlap_recompute_rules(job) if "ep_overlap" in self.searched else []
        return own, [*recompute, BLOCK_IN_CHUNK]

    def _dominance_rules(self) -> dict[str, list[LayoutRule]]:
        """Return by stage what leaves out layouts that another one dominates, of axes that were not asked for."""
        asked = search_names(self._limits.search)
        names = [name for name in DOMINATED if name in self.searched and name not in asked]
        early = {name: [tried_rule(name, self.job, is_whole=False)] for name in names}
        return {**early, "recompute": [tried_rule(name, self.job, is_whole=True) for name in names]}

    def parameters(self) -> dict[str, CategoricalParameter]:
        return {name: CategoricalParameter(values) for name, values in self.choices.items()}

    @property
    def open_names(self) -> list[str]:
        return [name for name, values in self.choices.items() if len(values) > 1]

    def layout(self, params: Mapping[str, Value]) -> Layout:
        changed: dict[str, Any] = {}
        for name in STAGES:
            if name in params and name in self.choices and name != ROUTED:
                changed |= self._changes(name, params[name])
        if "sequence_parallel" not in params:
            tp, cp = (changed.get(name, getattr(self._start, name)) for name in ("tp", "cp"))
            changed["sequence_parallel"] = self.job.sequence_parallel(tp=tp, cp=cp)
        return replace(self._start, **changed)  # once: it is most of what a point costs

    def planned_layout(self, params: Mapping[str, Value]) -> Layout:
        """Return that layout with how it is sharded in all; the rules know the optimizer's sharding alone."""
        layout = self.layout(params)
        return replace(layout, zero=FULLY_SHARDED) if self.job.is_fully_sharded else layout

    def explain(self, params: Mapping[str, Value]) -> str | None:
        more = [self._own_rules, *self._overlap_rules.values(), self._recompute_rules, *self._tried_rules.values()]
        rules = itertools.chain(*self._rules.values(), *more)
        return first_reason(rules, self._facts, self.layout(params))

    def tries(self, layout: Layout) -> bool:
        """Return whether a layout is one of the points, in all that a plan knows of it."""
        point = {name: self._value(name, layout) for name in self.choices}
        if any(value not in self.choices[name] for name, value in point.items()) or self.explain(point) is not None:
            return False
        meant = self.layout(point)
        return all(getattr(meant, field.name) == getattr(layout, field.name) for field in fields(Layout))

    def tables(self) -> Iterator[PointTable]:
        """Yield the points that break no rule, many at a time; what one value rules out is never put together."""
        from zenith_tune.layouts.layout_batch import PointTable, grow

        stages = dict(self._stages())
        axes = [(name, self.choices[name]) for name in stages]

        def holds(name: str, table: PointTable) -> BoolArray:
            layouts = self.layouts(table)
            allowed: BoolArray = (layouts.num_gpus == self.job.start.num_gpus) & legal(
                stages[name], self._facts, layouts
            )
            return allowed

        return grow(PointTable.of_one(), axes, holds)

    def layouts(self, table: PointTable) -> LayoutBatch:
        from zenith_tune.presets.megatron.batch import layouts_of

        choices = self.choices["recompute"]
        kinds = {kind: replace(self._start, **self._changes("recompute", kind)) for kind in choices}
        return layouts_of(table, self._start, recompute=kinds, sequence_parallel=self.job.sequence_parallel)

    def planned_layouts(self, table: PointTable) -> LayoutBatch:
        layouts = self.layouts(table)
        return replace(layouts, zero=layouts.zero * 0 + FULLY_SHARDED) if self.job.is_fully_sharded else layouts

    def _stages(self) -> Iterator[tuple[str, list[LayoutRule]]]:
        """Yield every parameter with the rules that can be checked once its value is chosen."""
        rules: list[LayoutRule] = []
        for name, planned in STAGES.items():
            rules += [rule for planner_rule in planned for rule in self._rules[planner_rule]]
            rules += self._overlap_rules.get(name, [])
            rules += self._own_rules if name == "sequence_parallel" else []
            rules += self._recompute_rules if name == "recompute" else []
            rules += self._tried_rules.get(name, [])
            if name in self.choices:
                yield name, rules
                rules = []

    def _changes(self, name: str, value: Value) -> dict[str, Any]:
        """Return the fields of a layout that a value of a parameter sets."""
        if name != "recompute":
            return {"micro_batch" if name == "mbs" else name: value}
        module = module_of(str(value))
        kind = parse_values(f"recompute={'selective' if module else value}", what="recompute")
        changed = {key: kind[key] for key in ("recompute", "recompute_layers")}
        return {**changed, "module": module} if isinstance(self._start, TunedLayout) else changed

    def _choices(self) -> dict[str, tuple[Value, ...]]:
        found: dict[str, tuple[Value, ...]] = {}
        for name in STAGES:
            if name in self.searched:
                found[name] = tuple(self._values(name))
            elif name in ALWAYS:
                found[name] = (self._value(name, self.job.start),)
        # No choice, but what the record must say: runs with other routing cannot be compared.
        if self.job.routing == BALANCED:
            found[ROUTED] = (BALANCED,)
        return found

    def own_point(self) -> Params:
        """Return the values that the command itself has."""
        return {name: self._value(name, self.job.start) for name in self.choices}

    def near_points(self) -> Iterator[Params]:
        """Yield the command's own point, and every one that differs in one value."""
        own = self.own_point()
        yield own
        yield from ({**own, name: value} for name in self.open_names for value in self.choices[name])

    def _value(self, name: str, layout: Layout) -> Value:
        """Return what a layout has of one name; what no layout says is as in the command."""
        if name == "recompute":
            return recompute_name(layout)
        if name in OVERLAPS:
            return own_overlap(name, self.job.args)
        if name == ROUTED:
            return self.job.routing
        value: int = layout.micro_batch if name == "mbs" else getattr(layout, name)
        return value

    def _values(self, name: str) -> Sequence[Value]:
        """Return what is tried of one name; at least what the command has."""
        if name == "zero":
            return [0, 1]
        if name == "sequence_parallel":
            return [True, False]
        if name in OVERLAPS:
            can_shard = "zero" in self.searched or self.job.start.zero > 0
            return overlap_values(name, self.job, can_shard=can_shard)
        if name == "recompute":
            return self._recomputations()
        if name == "mbs":
            batch = self.job.start.global_batch
            return [mbs for mbs in range(1, min(self._limits.mbs_max, batch) + 1) if batch % mbs == 0]
        return (self._chunks() if name == "vp" else self._sizes(name)) or [self._value(name, self.job.start)]

    def _sizes(self, name: str) -> list[int]:
        """Return the divisors of the GPUs that this size alone does not forbid."""
        job = self.job
        if (name == "cp" and is_local(job.args)) or (name in ("ep", "etp") and not job.has_experts):
            return [1]
        most = self._limits.tp_max if name in ("tp", "etp") else job.start.num_gpus
        return [size for size in divisors(job.start.num_gpus) if size <= most and self._goes_alone(name, size)]

    def _goes_alone(self, name: str, size: int) -> bool:
        layout = replace(Layout(num_gpus=self.job.start.num_gpus), **self._changes(name, size))
        if name == "pp" and size == self.job.start.pp:
            layout = replace(layout, vp=self.job.start.vp)
        rules = ("pipeline",) if name == "pp" else STAGES[name]
        return first_reason((rule for each in rules for rule in self._rules[each]), self._facts, layout) is None

    def _chunks(self) -> list[int]:
        """Return chunks per rank that go with some pipeline; laid out, no other numbers than a plan tries."""
        model = self.job.model
        if model is None:
            return [1]
        found = {1, self.job.start.vp}
        for pp in (pp for pp in self._pipelines() if pp > 1):
            found |= {vp for vp in range(2, model.num_layers // pp + 1) if self._tries_chunks(model.num_layers, pp, vp)}
        return sorted(found)

    def _tries_chunks(self, num_layers: int, pp: int, vp: int) -> bool:
        if is_laid_out(num_layers, pp=pp, vp=vp) and not SearchSpace().tries_laid_out(vp):
            return False
        layout = Layout(num_gpus=pp, pp=pp, vp=vp)
        return first_reason(self._rules["pipeline"], self._facts, layout) is None

    def _pipelines(self) -> list[int]:
        return self._sizes("pp") if "pp" in self.searched else [self.job.start.pp]

    def _recomputations(self) -> list[Value]:
        """Return none, selective, all layers, and blocks of one layer, a quarter and half of a stage."""
        blocks = {1}
        if (model := self.job.model) is not None:
            stages = [layers_per_chunk(model.num_layers, pp=pp, vp=1) for pp in self._pipelines()]
            blocks |= {stage // share for stage in stages for share in (2, 4) if stage >= share}
        modules = module_values(self.job) if MODULES in self.searched else []
        return ["none", "selective", *modules, "full/uniform1", *(f"full/block{block}" for block in sorted(blocks))]


def search_names(search: str) -> list[str]:
    """Return the names in what the user wants searched."""
    names = [name for name in re.split(r"[\s,+:]+", search.strip().lower()) if name]
    known = (*ALWAYS, *ON_REQUEST, DEFAULT)
    for name in names:
        if name not in known:
            raise UnknownNameError("axis in search", name, known)
    if not names:
        raise UsageError("search must name at least one axis, but is empty", hint="write e.g. search=tp+pp+mbs")
    return names


def _usual(job: MegatronJob) -> set[str]:
    usual = {"tp", "pp", "vp", "mbs", "recompute"}
    if job.job.seq_len >= LONG_SEQUENCE or job.start.cp > 1:
        usual.add("cp")
    if job.has_experts:
        usual |= {"ep", "etp"}
    # What the command has off and would be better on; a script that takes its values by placeholders has none for it.
    start = job.start
    if job.takes_options and not start.zero and start.num_gpus > 1 and job.can_shard:
        usual.add("zero")
    # From tp 1 it comes with tp; a mixture of experts does not train without it.
    is_off = start.tp > 1 and not start.sequence_parallel
    if job.takes_options and is_off and job.can_sequence_parallel and not job.has_experts:
        usual.add("sequence_parallel")
    return usual
