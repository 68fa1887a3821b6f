"""The points of a Megatron-LM job that are worth a trial, by the planner's own rules and the command's switches.

Legend: tp tensor, pp pipeline, cp context, ep expert and etp expert tensor parallel sizes; vp model chunks per pipeline
rank; mbs samples per micro-batch, gbs per step.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zenith_tune.describe.megatron.args import is_local
from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.layouts import constraints
from zenith_tune.layouts.layout import Layout, divisors, parse_values
from zenith_tune.layouts.layout_rules import RULES
from zenith_tune.layouts.pipeline import ACCOUNTED, is_accounted, is_even, layers_per_chunk
from zenith_tune.presets.megatron_lm.job import MegatronJob, recompute_name
from zenith_tune.presets.megatron_lm.overlap import (
    OVERLAPS,
    SELECTIVE,
    SWITCH,
    TunedLayout,
    module_of,
    module_values,
    overlap_reasons,
    overlap_values,
    own_overlap,
    recompute_reasons,
    switches_in,
)
from zenith_tune.study.parameters import CategoricalParameter, Params, Value

ALWAYS = ("tp", "pp", "vp", "cp", "ep", "etp", "mbs", "recompute")
MODULES = "modules"
"""Asks for more kinds of `recompute`; no axis of its own."""
ON_REQUEST = ("zero", "sequence_parallel", *OVERLAPS, MODULES)
DEFAULT = "default"
LONG_SEQUENCE = 16_384
"""Tokens from which on context parallelism is searched without being asked for."""
MAX_LAID_OUT = 4
"""Chunks per rank that are tried where the layers go into no equal ones."""
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
    "mbs": ("batch", "interleaved_batches"),
    "recompute": ("recompute_takes", "recompute_chunk", "framework"),
}
"""In the order in which a point is put together: the rules that can be told once a value is chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchLimits:
    """Hold what the user wants searched, and how far."""

    search: str = DEFAULT
    """Axes with a plus or a comma between them; `default` stands for those that are searched without it."""
    tp_max: int
    mbs_max: int


class MegatronLmSpace:
    """Hold the choices of one job, and tell which points of them go."""

    def __init__(self, job: MegatronJob, limits: SearchLimits) -> None:
        self.job, self._limits = job, limits
        self.searched = _searched(limits.search, job)
        decided = {SWITCH[name] for name in self.searched if name in SWITCH}
        self._switches = [switch for switch in switches_in(job.args) if switch.option not in decided]
        self._start = TunedLayout.of(job.start) if self.searched & {*OVERLAPS, MODULES} else job.start
        # Between 1 and tp it lies between these two, beyond it cuts experts with more traffic than ep does.
        self._tries_every_etp = "etp" not in self.searched or "etp" in search_names(limits.search)
        self.choices: dict[str, tuple[Value, ...]] = self._choices()
        self._recompute: dict[tuple[int, ...], list[Value]] = {}

    def parameters(self) -> dict[str, CategoricalParameter]:
        """Return the search space."""
        return {name: CategoricalParameter(values) for name, values in self.choices.items()}

    @property
    def open_names(self) -> list[str]:
        """Return the parameters that have more than one value."""
        return [name for name, values in self.choices.items() if len(values) > 1]

    def layout(self, params: Mapping[str, Value]) -> Layout:
        """Return the whole layout that a point stands for."""
        at = self._start
        for name in STAGES:
            if name in params:
                at = self._with(at, name, params[name])
        return at

    def explain(self, params: Mapping[str, Value]) -> str | None:
        """Return the first rule that a point breaks, in words."""
        at = self.layout(params)
        reasons = (self._reason(rule, at) for rule in RULES)
        if (reason := next((reason for reason in reasons if reason), None)) is not None:
            return reason
        overlaps = (reason for name in OVERLAPS if name in params for reason in overlap_reasons(name, self.job, at))
        return next(itertools.chain(self._own_reasons(at), overlaps, self._recompute_reasons(at)), None)

    def points(self) -> Iterator[Params]:
        """Yield every point that breaks no rule; what one value rules out is never put together."""
        blank = replace(self._start, tp=1, pp=1, vp=1, cp=1, ep=1, etp=1)
        return self._grow({}, blank, list(STAGES))

    def _grow(self, chosen: Params, at: Layout, stages: Sequence[str]) -> Iterator[Params]:
        name, *later = stages
        if name == "recompute":
            for kind in self._recompute_choices(at):
                yield {**chosen, name: kind}
            return
        values: Sequence[Value | None] = self.choices.get(name, (None,))
        for value in values:
            grown = at if value is None else self._with(at, name, value)
            if any(self._reason(rule, grown) for rule in STAGES[name]):
                continue
            if name == "sequence_parallel" and next(self._own_reasons(grown), None):
                continue
            if name in OVERLAPS and value is not None and next(overlap_reasons(name, self.job, grown), None):
                continue
            yield from self._grow(chosen if value is None else {**chosen, name: value}, grown, later)

    def _recompute_choices(self, at: Layout) -> list[Value]:
        """Return the kinds of recomputation that go; they depend on few of the sizes, and are kept by these."""
        key = (at.tp, at.pp, at.vp, at.ep, at.sequence_parallel, isinstance(at, TunedLayout) and at.ep_overlap)
        if key not in self._recompute:
            self._recompute[key] = [
                value for value in self.choices["recompute"] if self._recomputes(self._with(at, "recompute", value))
            ]
        return self._recompute[key]

    def _recomputes(self, at: Layout) -> bool:
        return not any(self._reason(rule, at) for rule in STAGES["recompute"]) and not any(self._recompute_reasons(at))

    def _reason(self, rule: str, at: Layout) -> str | None:
        job = self.job
        if rule == "pipeline" and self._is_own_split(at):
            return None
        if job.model is not None:
            return RULES[rule].explain(job.model, job.job, at) or job.rules.reason(rule, job.model, at)
        if rule == "world":
            return constraints.check_dense_world(at.num_gpus, tp=at.tp, pp=at.pp, cp=at.cp)
        if rule == "batch":
            world = constraints.check_dense_world(at.num_gpus, tp=at.tp, pp=at.pp, cp=at.cp)
            return world or constraints.check_batch(at.global_batch, dp=at.dp, mbs=at.micro_batch)
        return None

    def _is_own_split(self, at: Layout) -> bool:
        start = self.job.start
        return self.job.has_custom_split and (at.pp, at.vp) == (start.pp, start.vp)

    def _own_reasons(self, at: Layout) -> Iterator[str]:
        if not self._tries_every_etp and at.etp not in (1, at.tp):
            yield f"etp is tried as 1 and as tp unless search names it, but got {at.etp} with tp {at.tp}"
        if self.job.has_experts:
            yield from self.job.rules.expert_reasons(at)
        for switch in self._switches:
            if not switch.about_recompute and (reason := switch.reason(at, self.job.start)):
                yield reason

    def _recompute_reasons(self, at: Layout) -> Iterator[str]:
        for switch in self._switches:
            if switch.about_recompute and (reason := switch.reason(at, self.job.start)):
                yield reason
        yield from recompute_reasons(self.job, at)
        if at.recompute == "full/block" and self.job.model is not None:
            chunk = layers_per_chunk(self.job.model.num_layers, pp=at.pp, vp=at.vp)
            if at.recompute_layers >= chunk:
                yield f"{recompute_name(at)} recomputes all {chunk} layers of a chunk, as full/uniform1 does"

    def _with(self, at: Layout, name: str, value: Value) -> Layout:
        fields: dict[str, Any] = {"micro_batch" if name == "mbs" else name: value}
        if name == "recompute":
            fields = _recompute_fields(str(value))
            if isinstance(at, TunedLayout):
                fields["module"] = module_of(str(value))
        elif name == "tp" and "sequence_parallel" not in self.searched:
            fields["sequence_parallel"] = int(value) > 1 and self.job.can_sequence_parallel
        return replace(at, **fields)

    def _choices(self) -> dict[str, tuple[Value, ...]]:
        found: dict[str, tuple[Value, ...]] = {}
        for name in STAGES:
            if name in self.searched:
                found[name] = tuple(self._values(name))
            elif name in ALWAYS:
                found[name] = (self._own(name),)
        return found

    def own_point(self) -> Params:
        """Return the values that the command itself has."""
        return {name: self._own(name) for name in self.choices}

    def _own(self, name: str) -> Value:
        start = self.job.start
        if name == "recompute":
            return recompute_name(start)
        if name in OVERLAPS:
            return own_overlap(name, self.job.args)
        value: int = start.micro_batch if name == "mbs" else getattr(start, name)
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
        return (self._chunks() if name == "vp" else self._sizes(name)) or [self._own(name)]

    def _sizes(self, name: str) -> list[int]:
        """Return the divisors of the GPUs that this size alone does not forbid."""
        job = self.job
        if (name == "cp" and is_local(job.args)) or (name in ("ep", "etp") and not job.has_experts):
            return [1]
        most = self._limits.tp_max if name in ("tp", "etp") else job.start.num_gpus
        return [size for size in divisors(job.start.num_gpus) if size <= most and self._goes_alone(name, size)]

    def _goes_alone(self, name: str, size: int) -> bool:
        at = self._with(Layout(num_gpus=self.job.start.num_gpus), name, size)
        if name == "pp" and size == self.job.start.pp:
            at = replace(at, vp=self.job.start.vp)
        rules = ("pipeline",) if name == "pp" else STAGES[name]
        return not any(self._reason(rule, at) for rule in rules)

    def _chunks(self) -> list[int]:
        """Return chunks per rank that cut the layers evenly for some pipeline, or a few where none does."""
        model = self.job.model
        if model is None:
            return [1]
        found = {1, self.job.start.vp}
        for pp in (pp for pp in self._pipelines() if pp > 1):
            chunks = {*divisors(model.num_layers), *divisors(model.num_layers + ACCOUNTED)}
            even = {
                vp
                for vp in chunks
                if vp <= model.num_layers // pp
                and (is_even(model.num_layers, pp=pp, vp=vp) or is_accounted(model.num_layers, pp=pp, vp=vp))
            }
            found |= even or set(range(1, min(model.num_layers // pp, MAX_LAID_OUT) + 1))
        return sorted(found)

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


def _recompute_fields(text: str) -> dict[str, Any]:
    text = SELECTIVE.rstrip("/") if module_of(text) else text
    values = parse_values(f"recompute={text}", what="recompute")
    return {"recompute": values["recompute"], "recompute_layers": values["recompute_layers"]}


def search_names(search: str) -> list[str]:
    """Return the names in what the user wants searched.

    >>> search_names("default+zero")
    ['default', 'zero']
    """
    names = [name for name in re.split(r"[\s,+:]+", search.strip().lower()) if name]
    known = (*ALWAYS, *ON_REQUEST, DEFAULT)
    for name in names:
        if name not in known:
            raise UnknownNameError("axis in search", name, known)
    if not names:
        raise UsageError("search must name at least one axis, but is empty", hint="write e.g. search=tp+pp+mbs")
    return names


def _searched(search: str, job: MegatronJob) -> set[str]:
    names = set(search_names(search))
    names |= {"recompute"} if MODULES in names else set()
    return (names - {DEFAULT}) | (_usual(job) if DEFAULT in names else set())


def _usual(job: MegatronJob) -> set[str]:
    usual = {"tp", "pp", "vp", "mbs", "recompute"}
    if job.job.seq_len >= LONG_SEQUENCE or job.start.cp > 1:
        usual.add("cp")
    return usual | ({"ep", "etp"} if job.has_experts else set())
