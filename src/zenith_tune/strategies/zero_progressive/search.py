"""One search over ZeRO stages: which of them are tried, which are skipped and why, and what comes after."""

from __future__ import annotations

from dataclasses import dataclass, replace

from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.strategies.base import EvalFunction, TunedJob, await_first
from zenith_tune.strategies.random import checked_seed
from zenith_tune.strategies.zero_progressive.feasibility import (
    HOPELESS,
    UNSURE,
    ActivationProfile,
    MeasuredMemory,
    ZeroSubject,
)
from zenith_tune.strategies.zero_progressive.inside import KINDS, Proposals, own_keys
from zenith_tune.strategies.zero_progressive.rung import NOT_RUN, Choices, Rung, RungSearch, rungs
from zenith_tune.study.parameters import Direction, Params
from zenith_tune.study.trial import Trial
from zenith_tune.units import format_gain, format_value

CLOSE = 0.1
"""Gain of the best over a stage below which the stage may be faster with other keys than those it was tried with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRules:
    """The arguments of the strategy."""

    plateau: float = 0.01
    probe: bool = False
    inside: str = "grid"
    patience: int = 5
    inside_trials: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.plateau < 1:
            raise UsageError(f"plateau must lie between 0 and 1, but got {self.plateau:g}: 0.01 is 1%")
        for name, value in {"patience": self.patience, "inside_trials": self.inside_trials}.items():
            if value < 1:
                raise UsageError(f"{name} must be at least 1, but got {value}: correct it")
        if self.inside not in KINDS:
            raise UnknownNameError("way of searching inside a stage", self.inside, KINDS)
        checked_seed(self.seed)


class ProgressiveSearch:
    """A walk up the rungs, then a search over the other keys of the best one."""

    def __init__(
        self, eval_fn: EvalFunction, choices: Choices, direction: Direction, job: TunedJob, rules: SearchRules
    ) -> None:
        self.rungs: list[RungSearch] = []
        self.lines: list[str] = []
        self._eval_fn, self._choices, self._direction, self._job, self._rules = eval_fn, choices, direction, job, rules
        self._micro_batches = sorted(int(mbs) for mbs in choices["mbs"])
        subject = job.subject
        self._memory: ActivationProfile | MeasuredMemory = (
            ActivationProfile(subject) if isinstance(subject, ZeroSubject) else MeasuredMemory()
        )
        self._is_over = False
        own, baseline = job.own_point(), job.baseline()
        if own is not None and baseline is not None:
            self._memory.observe(replace(baseline, params=own))

    def run(self) -> None:
        """Search until no stage is left that can be faster."""
        for rung in rungs(self._choices):
            self._try(rung)
        self._search_inside()
        self._is_over = True

    def why_done(self) -> str | None:
        if not self._is_over:
            return None
        return "no stage is left that can be faster" if self._best else "no stage runs at any micro-batch"

    @property
    def _best(self) -> RungSearch | None:
        """The rung with the best run, the lowest of equals."""
        sign = self._direction.sign
        ran = [
            (sign * best.value, search)
            for search in self.rungs
            if (best := search.best) is not None and best.value is not None
        ]
        return min(ran, key=lambda each: each[0])[1] if ran else None

    @property
    def _reach(self) -> int:
        """The largest micro-batch that has run at any stage with memory to spare; 0 where none has."""
        return max((search.roomy_edge or 0 for search in self.rungs), default=0)

    def _try(self, rung: Rung) -> None:
        search = RungSearch(rung, self._run, self._direction, self._rules.plateau, self._memory)
        search.skipped = self._why_skip(rung)
        if rung.is_lean and search.skipped is not None:
            return  # not a stage of its own: listed only where it helps
        self.rungs.append(search)
        if search.skipped is None:
            self._explore(search)
        if search.edge is None and not rung.is_lean and (self._rules.probe or self._has_keys_of_its_own(rung)):
            best = self._best.best if self._best else None
            mbs = int(best.params["mbs"]) if best is not None else 0
            if mbs and not (self._memory.is_measured(rung.base) and self._memory.why_not(rung.at(mbs))):
                search.run_at(mbs, "a single run of a stage that would be skipped")
        self._report(search)

    def _why_skip(self, rung: Rung) -> str | None:
        """Return why a rung cannot beat the best so far, or None where it may."""
        best, reach, last = self._best, self._reach, self._micro_batches[-1]
        if (too_large := self._why_too_large(rung, self._micro_batches[0])) is not None:
            return f"it does not fit: {too_large}"
        if best is None:
            return None
        if best.has_ended_growing:
            return f"a larger micro-batch gains nothing: growth had ended at {best.edge}, {best.rung.name}"
        if reach >= last:
            return f"micro-batch {last}, the largest there is, runs without it"
        following = next(mbs for mbs in self._micro_batches if mbs > reach)
        if (too_large := self._why_too_large(rung, following)) is not None:
            return f"its micro-batch is no larger than the {reach} that runs without it: {following} {too_large}"
        largest = max(self._largest(rung) or last, following)
        gain = best.roomy_growth.expected_gain(best.roomy_edge or following, largest)
        if gain is not None and gain < self._rules.plateau:
            return f"micro-batch {largest} promises no more than {format_gain(gain)}"
        return None

    def _explore(self, search: RungSearch) -> None:
        smallest = self._micro_batches[0]
        if self._best is None and not search.run_at(smallest, "profiling run: the smallest micro-batch").ok:
            return
        floor = self._reach if search.edge is None else max(self._reach, smallest)
        larger = self._promising(search.rung, floor)
        if not larger and self._memory.is_vague(search.rung.base):
            # One more run measures what a sample takes, which the arithmetic has wrong by then.
            following = next((mbs for mbs in self._micro_batches if mbs > floor), None)
            why = "the next micro-batch: what it takes tells the memory of a sample"
            if following is None or not search.run_at(following, why).ok:
                return
            larger = self._promising(search.rung, following)
        if not larger:
            return
        why = "search of the largest micro-batch that runs"
        if (largest := self._largest(search.rung)) is not None:
            search.find(larger, largest, f"{why}, {largest} predicted")
        else:
            # Where nothing is known of memory, the next larger one shows whether the stage helps at all.
            search.find(larger, larger[0] if search.edge is None else None, why)

    def _promising(self, rung: Rung, floor: int) -> list[int]:
        return [mbs for mbs in self._micro_batches if mbs > floor and not self._exceeds(rung.at(mbs), HOPELESS)]

    def _has_keys_of_its_own(self, rung: Rung) -> bool:
        """Tell whether keys are searched that have an effect at this stage, and none at the best so far."""
        best = self._best
        known = own_keys(self._choices, best.rung.stage) if best else {}
        return bool(own_keys(self._choices, rung.stage).keys() - known.keys())

    def _search_inside(self) -> None:
        """Search the keys of the best stage, and of those that are close behind and have keys that it has not."""
        best = self._best
        if best is None:
            return
        close = [search for search in self.rungs if search is not best and self._is_close(search, best)]
        for search in [best, *(each for each in close if self._has_keys_of_its_own(each.rung))]:
            self._try_other_keys(search)

    def _try_other_keys(self, search: RungSearch) -> None:
        """Try other values of the keys that have an effect at a stage, at its best micro-batch."""
        axes, best, rules = own_keys(self._choices, search.rung.stage), search.best, self._rules
        if not axes or best is None:
            return
        # A point that takes little more memory than what ran is not ruled out.
        limit = max(self._memory.capacity_bytes, UNSURE * self._memory.needed(best.params))
        proposals = Proposals(rules.inside, axes, dict(best.params), rules.seed)
        without_gain = 0
        while (left := min(rules.inside_trials - len(search.inside), rules.patience - without_gain)) > 0:
            known = [(trial.params, trial.value) for trial in (best, *search.inside) if trial.value is not None]
            points = proposals.next(min(self._job.num_slots, left), known, self._direction)
            if not points:
                break
            fitting = [point for point in points if self._memory.needed(point) <= limit]
            futures = [self._eval_fn.submit(point, "other keys at the best micro-batch") for point in fitting]
            for future in futures:
                await_first([future])
                trial = future.result()
                if trial.ok or trial.outcome not in NOT_RUN:
                    search.inside.append(trial)
                    without_gain = 0 if search.best is trial else without_gain + 1
        self.lines.append(f"inside {search.rung.name}: {len(search.inside)} runs over {', '.join(axes)}")

    def _is_close(self, search: RungSearch, best: RungSearch) -> bool:
        value, best_value = (each.best.value if each.best else None for each in (search, best))
        return value is not None and best_value is not None and self._direction.gain(best_value, over=value) < CLOSE

    def _run(self, point: Params, why: str) -> Trial:
        trial = self._eval_fn.run(point, why)
        self._memory.observe(trial)
        return trial

    def _largest(self, rung: Rung) -> int | None:
        return self._memory.largest(rung.base, self._micro_batches)

    def _why_too_large(self, rung: Rung, mbs: int) -> str | None:
        """Return the arithmetic against a micro-batch, where a run has measured its terms."""
        point = rung.at(mbs)
        return self._memory.why_not(point) if self._exceeds(point, UNSURE) else None

    def _exceeds(self, point: Params, factor: float) -> bool:
        """Tell whether a point exceeds the memory by a factor, by measured figures."""
        memory = self._memory
        return memory.is_measured(point) and memory.needed(point) > factor * memory.capacity_bytes

    def _report(self, search: RungSearch) -> None:
        best, name = search.best, search.rung.name
        if search.skipped is not None:
            once = " but for one run" if search.trials else ""
            self._job.tell(f"{name} is skipped{once}: {search.skipped}")
        elif best is None or best.value is None:
            self._job.tell(f"{name}: {search.failure or 'no micro-batch beyond those before it runs'}")
        else:
            value = format_value(best.value, best.unit)
            self._job.tell(f"{name}: best is micro-batch {best.params['mbs']} with {value}")
