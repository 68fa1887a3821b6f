"""One search over ZeRO stages: which of them are tried, which are skipped and why, and what comes after.

Where nothing is known of the model, what runs have measured of memory is a line over the micro-batch for each stage.
Legend: m micro-batch, a bytes whatever the micro-batch, b bytes of a sample. A run takes a + b m. What a stage keeps is
its own, a sample takes the same at every stage. Two runs at one stage give b; a further stage gives its a by one run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from zenith_tune.describe.deepspeed_config import CHECKPOINTING
from zenith_tune.evaluators.failures.failures import FailedAllocation
from zenith_tune.strategies.base import EvalFunction, TunedJob
from zenith_tune.strategies.zero_progressive.feasibility import (
    HOPELESS,
    UNSURE,
    ActivationProfile,
    Point,
    ZeroSubject,
    slope,
)
from zenith_tune.strategies.zero_progressive.inside import InsideRules, InsideSearch, own_keys
from zenith_tune.strategies.zero_progressive.rung import Rung, RungSearch, rungs
from zenith_tune.study.parameters import Direction, Params, Value
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.units import format_bytes, format_gain, format_value


class MeasuredMemory:
    """Predict which points run out of memory from those that ran, and from those that did not."""

    def __init__(self) -> None:
        self._peaks: dict[Point, dict[int, int]] = {}
        self._failed: list[Mapping[str, Value]] = []
        self._reported = math.inf

    def observe(self, trial: Trial) -> None:
        """Learn from a run that tells its peak memory, or that ran out of it."""
        if trial.ok and trial.peak_memory_bytes:
            self._peaks.setdefault(_others(trial.params), {})[int(trial.params["mbs"])] = trial.peak_memory_bytes
        elif trial.outcome is Outcome.OOM:
            self._failed.append(trial.params)
            self._reported = min(self._reported, FailedAllocation.of(trial.cause).capacity_bytes or math.inf)

    @property
    def capacity_bytes(self) -> float:
        """What a run can surely not take: what failed runs would have taken, or what they say the GPU has."""
        return min([self._reported, *(self.needed(params) for params in self._failed if self.is_measured(params))])

    def is_measured(self, params: Mapping[str, Value]) -> bool:
        """Tell whether runs have measured what a point needs."""
        return _others(params) in self._peaks and self._per_sample(params) is not None

    def is_vague(self, params: Mapping[str, Value]) -> bool:
        """Tell whether runs contradict what is predicted, which here is nothing."""
        return False

    def needed(self, params: Mapping[str, Value]) -> float:
        """Return the bytes that a point needs; 0 where no run tells."""
        peaks, per_sample = self._peaks.get(_others(params)), self._per_sample(params)
        if not peaks or per_sample is None:
            return 0.0
        known = max(peaks)
        return peaks[known] + per_sample * (int(params["mbs"]) - known)

    def largest(self, params: Mapping[str, Value], micro_batches: Sequence[int]) -> int | None:
        """Return the largest of these micro-batches that is below what failed; None where nothing is known of it."""
        if not self.is_measured(params) or math.isinf(self.capacity_bytes):
            return None
        return max((mbs for mbs in micro_batches if self.why_not({**params, "mbs": mbs}) is None), default=None)

    def why_not(self, params: Mapping[str, Value]) -> str | None:
        """Return why a point does not fit, or None."""
        needed, capacity = self.needed(params), self.capacity_bytes
        if needed < capacity:
            return None
        line = f"{format_bytes(self._per_sample(params) or 0.0)} a sample, as measured"
        return f"needs {format_bytes(needed)}, and {format_bytes(capacity)} are not there ({line})"

    def _per_sample(self, params: Mapping[str, Value]) -> float | None:
        """Return the bytes of a sample: of the same stage, or of another one that keeps activations alike."""
        own = slope(self._peaks.get(_others(params), {}))
        if own is not None:
            return own
        alike = (found for others, found in self._peaks.items() if _recomputes(dict(others)) == _recomputes(params))
        return max((each for peaks in alike if (each := slope(peaks)) is not None), default=None)


def _others(params: Mapping[str, Value]) -> Point:
    return tuple((name, value) for name, value in params.items() if name != "mbs")


def _recomputes(params: Mapping[str, Value]) -> bool:
    return bool(params.get(CHECKPOINTING))


PRESSED = 0.9
"""A run that takes more of the memory than this is slowed down by want of it, and says nothing of larger ones."""
CLOSE = 0.1
"""A stage so close behind the best may be faster with other keys than those that it was tried with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRules:
    """Hold when a direction ends."""

    plateau: float
    probe: bool
    inside: InsideRules


class ProgressiveSearch:
    """Go up the rungs, then search the other keys of the best one."""

    def __init__(
        self,
        eval_fn: EvalFunction,
        choices: Mapping[str, tuple[Value, ...]],
        direction: Direction,
        job: TunedJob,
        rules: SearchRules,
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
        """Return why nothing more is tried."""
        if not self._is_over:
            return None
        return "no stage is left that can be faster" if self._best else "no stage runs at any micro-batch"

    @property
    def _best(self) -> RungSearch | None:
        """The rung with the best run, the lowest of equals."""
        best: RungSearch | None = None
        for search in self.rungs:
            if search.best is not None and (best is None or self._is_better(search.best, best.best)):
                best = search
        return best

    @property
    def _reach(self) -> int:
        """The largest micro-batch that has run at any stage with memory to spare; 0 where none has."""
        return max((search.roomy_edge or 0 for search in self.rungs), default=0)

    def _try(self, rung: Rung) -> None:
        search = RungSearch(
            rung, self._run_point, self._direction, self._rules.plateau, self._is_pressed, self._is_known_to_fail
        )
        search.skipped = self._why_skip(rung)
        if rung.is_lean and search.skipped is not None:
            return  # it is no stage of its own, and worth a word only where it helps
        self.rungs.append(search)
        if search.skipped is None:
            self._explore(search)
        if search.edge is None and not rung.is_lean and (self._rules.probe or self._has_keys_of_its_own(rung)):
            self._probe(search)
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
        if self._best is None and not search.profile(smallest).ok:
            return
        floor = self._reach if search.edge is None else max(self._reach, smallest)
        larger = [mbs for mbs in self._micro_batches if mbs > floor and not self._exceeds(search.rung, mbs, HOPELESS)]
        if not larger and self._memory.is_vague(search.rung.base):
            # One run more tells what a sample takes, which the arithmetic has wrong by then.
            following = next((mbs for mbs in self._micro_batches if mbs > floor), None)
            if following is None or not search.try_next(following).ok:
                return
            larger = [mbs for mbs in self._micro_batches if mbs > following]
            larger = [mbs for mbs in larger if not self._exceeds(search.rung, mbs, HOPELESS)]
        if not larger:
            return
        why = "search of the largest micro-batch that runs"
        if (largest := self._largest(search.rung)) is not None:
            search.find(larger, largest, f"{why}, {largest} predicted")
        else:
            # Where nothing is known of memory, the next larger one tells whether the stage helps at all.
            search.find(larger, larger[0] if search.edge is None else None, why)

    def _has_keys_of_its_own(self, rung: Rung) -> bool:
        """Tell whether keys are searched that have an effect at this stage, and none at the best so far."""
        best = self._best
        known = own_keys(self._choices, best.rung.stage) if best else {}
        return bool(own_keys(self._choices, rung.stage).keys() - known.keys())

    def _probe(self, search: RungSearch) -> None:
        best = self._best.best if self._best else None
        if best is not None and self._fits(search.rung.at(int(best.params["mbs"]))):
            search.probe(int(best.params["mbs"]))

    def _search_inside(self) -> None:
        """Search the keys of the best stage, and of those that are close behind and have keys that it has not."""
        best = self._best
        if best is None or best.best is None or best.best.value is None:
            return
        inside = InsideSearch(self._eval_fn, self._rules.inside, self._job.num_slots, self._fits_like)
        close = [search for search in self.rungs if search is not best and self._is_close(search, best.best.value)]
        for search in [best, *(each for each in close if self._has_keys_of_its_own(each.rung))]:
            if (line := inside.run(search, self._choices)) is not None:
                self.lines.append(line)

    def _is_close(self, search: RungSearch, best: float) -> bool:
        value = search.best.value if search.best else None
        return value is not None and self._direction.gain(best, over=value) < CLOSE

    def _run_point(self, rung: Rung, mbs: int, why: str) -> Trial:
        trial = self._eval_fn.run(rung.at(mbs), why)
        self._memory.observe(trial)
        return trial

    def _largest(self, rung: Rung) -> int | None:
        return self._memory.largest(rung.base, self._micro_batches)

    def _why_too_large(self, rung: Rung, mbs: int) -> str | None:
        """Return the arithmetic against a micro-batch, where a run has measured what it rests on."""
        return self._memory.why_not(rung.at(mbs)) if self._exceeds(rung, mbs, UNSURE) else None

    def _exceeds(self, rung: Rung, mbs: int, factor: float) -> bool:
        """Tell whether a micro-batch is beyond the memory by a factor, by what runs have measured."""
        memory = self._memory
        return memory.is_measured(rung.base) and memory.needed(rung.at(mbs)) > factor * memory.capacity_bytes

    def _is_known_to_fail(self, rung: Rung, mbs: int) -> bool:
        """Tell whether a micro-batch needs what runs of this very model have not found."""
        return isinstance(self._memory, MeasuredMemory) and self._memory.why_not(rung.at(mbs)) is not None

    def _is_pressed(self, trial: Trial) -> bool:
        return (trial.peak_memory_bytes or 0) > PRESSED * self._memory.capacity_bytes

    def _fits(self, point: Params) -> bool:
        return not self._memory.is_measured(point) or self._memory.why_not(point) is None

    def _fits_like(self, point: Params, other: Params) -> bool:
        """Tell whether a point fits, given another that ran: what takes little more than that one is not ruled out."""
        limit = max(self._memory.capacity_bytes, UNSURE * self._memory.needed(other))
        return self._memory.needed(point) <= limit

    def _is_better(self, trial: Trial, than: Trial | None) -> bool:
        if trial.value is None or than is None or than.value is None:
            return trial.value is not None
        return self._direction.better(trial.value, than=than.value)

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
