"""The legal values of each parallel size for one model, job and number of GPUs, and those that a rule excludes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.layouts.layout import SCHEDULES, Layout, divisors
from zenith_tune.layouts.pipeline import is_even, is_laid_out
from zenith_tune.layouts.rules import RULES, JobFacts, first_reason
from zenith_tune.layouts.search_space import SearchSpace, limits_of

TENSOR_RULES = ("heads", "query_groups", "ffn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What one rule excludes from the search."""

    rule: str
    problem: str
    count: int
    what: str
    """What is counted: values of a size, grids of tp x pp x vp x cp x dp, or micro-batches."""
    example: str
    """The reason for the first one, with its values."""


@dataclass(slots=True)
class CutLog:
    """What the rules exclude, counted."""

    _found: dict[tuple[str, str], Cut] = field(default_factory=dict)

    def add(self, rule: str, what: str, reason: str, count: int = 1) -> None:
        """Count `count` things that `rule` excludes for `reason`."""
        first = Cut(rule=rule, what=what, problem=RULES[rule].problem, count=0, example=reason)
        cut = self._found.get((rule, what), first)
        self._found[rule, what] = replace(cut, count=cut.count + count)

    def cuts(self) -> list[Cut]:
        """Return one entry per rule, the one that excludes most first."""
        return sorted(self._found.values(), key=lambda cut: -cut.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """The values of each size that follow the rules about that size alone."""

    model: ModelSpec
    job: JobSpec
    num_gpus: int
    space: SearchSpace
    log: CutLog = field(default_factory=CutLog)

    def tensor(self) -> list[int]:
        return [tp for tp in self._sizes("tp") if self._holds(Layout(num_gpus=tp, tp=tp), "tp", *TENSOR_RULES)]

    def context(self) -> list[int]:
        return [cp for cp in self._sizes("cp") if self._holds(Layout(num_gpus=cp, cp=cp), "cp", "context")]

    def pipeline(self) -> list[tuple[int, int, int]]:
        """Return the pipeline sizes, each with every number of chunks per rank and the place of each schedule."""
        sizes = [pp for pp in self._sizes("pp") if pp <= self.model.num_layers]
        sizes = [pp for pp in sizes if self._holds(Layout(num_gpus=pp, pp=pp), "pp", "pipeline")]
        return [(pp, vp, code) for pp in sizes for vp in self._chunks(pp) for code in self._schedules(pp, vp)]

    def experts(self, pp: int) -> Iterator[tuple[int, int]]:
        """Yield the expert-parallel and expert-tensor sizes that go with a pipeline of `pp` ranks."""
        ranks = self.num_gpus // pp
        eps = [ep for ep in divisors(self.model.num_experts or 1) if ranks % ep == 0 and self._allows("ep", ep)]
        etps = [etp for etp in divisors(ranks) if self._allows("etp", etp) and etp <= self.space.max_tp]
        etps = [etp for etp in etps if self._is_legal(Layout(num_gpus=etp, etp=etp), "expert_tensor", "expert_bias")]
        return ((ep, etp) for ep in eps for etp in etps if ranks % (ep * etp) == 0)

    def _schedules(self, pp: int, vp: int) -> Iterable[int]:
        """Return the schedules for so many chunks; gpipe, as slow as 1f1b and larger, only where it is asked for."""
        enough = Layout(num_gpus=pp, pp=pp, vp=vp, global_batch=2 * pp)
        known = limits_of(self.job.framework.name).schedules if pp > 1 else SCHEDULES[:1]
        for name in known:
            is_tried = self.space.allows("schedule", name) and (name != "gpipe" or "schedule" in self.space.pinned)
            if is_tried and self._is_legal(replace(enough, schedule=name), "schedule"):
                yield SCHEDULES.index(name)

    def _chunks(self, pp: int) -> Iterable[int]:
        most = self.model.num_layers // pp if pp > 1 else 1
        allowed = [vp for vp in range(1, most + 1) if self._allows("vp", vp) and self._tries_split(pp, vp)]
        return [vp for vp in allowed if self._is_legal(Layout(num_gpus=pp, pp=pp, vp=vp), "pipeline")]

    def _tries_split(self, pp: int, vp: int) -> bool:
        if is_even(self.model.num_layers, pp=pp, vp=vp):
            return True
        is_laid = is_laid_out(self.model.num_layers, pp=pp, vp=vp)
        return self.space.uneven_splits and (not is_laid or self.space.tries_laid_out(vp))

    def _sizes(self, name: str) -> list[int]:
        return [size for size in divisors(self.num_gpus) if self._allows(name, size)]

    def _allows(self, name: str, size: int) -> bool:
        return self.space.allows(name, size) and (size == 1 or name in limits_of(self.job.framework.name).sizes)

    def _is_legal(self, layout: Layout, *rules: str) -> bool:
        return first_reason((RULES[rule] for rule in rules), JobFacts.of(self.model, self.job), layout) is None

    def _holds(self, layout: Layout, what: str, *rules: str) -> bool:
        for rule in rules:
            if (reason := RULES[rule].reason(JobFacts.of(self.model, self.job), layout)) is not None:
                self.log.add(rule, f"{what} value", reason)
                return False
        return True
