"""A time that no schedule of a layout can beat, made without simulating it: most layouts of many ranks need no more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from itertools import accumulate

from zenith_mimo.planning.candidate import MimoCandidate
from zenith_mimo.planning.config import LANGUAGE
from zenith_mimo.planning.job import MODULES, MimoJob
from zenith_mimo.planning.timeline import all_units, passes_of


class LeastTimes:
    """The least times of a job's layouts: of the busiest stage, after the first micro-batch has come to it.

    Messages, and lanes that wait for fuller ones, are left out.
    """

    def __init__(self, job: MimoJob) -> None:
        self._job = job
        self._counts: dict[Hashable, dict[int, float]] = {}
        self._seconds: dict[Hashable, list[float]] = {}

    def of(self, candidate: MimoCandidate) -> float:
        """Return the least time of a step's passes."""
        busy, first = [], []
        for name in MODULES:
            counts = self._counts_of(candidate, name)
            seconds = {units: self._stage_seconds(candidate, name, units) for units in counts}
            stages = range(candidate.module(name).pp)
            busy += [sum(count * seconds[units][stage] for units, count in counts.items()) for stage in stages]
            # A lane of the encoder may have no items at first; all lanes of the language model have samples.
            first += next(iter(seconds.values())) if len(seconds) == 1 else [0.0 for _ in stages]
        if candidate.is_colocated:
            return sum(busy)
        return max(before_s + busy_s for before_s, busy_s in zip([0.0, *accumulate(first)], busy, strict=False))

    def _counts_of(self, candidate: MimoCandidate, name: str) -> dict[int, float]:
        """Return how often a lane meets a micro-batch of so many units in a step, as an average over the lanes."""
        size = candidate.micro_batch * candidate.language.dp
        num = self._job.global_batch // size
        if name == LANGUAGE:
            return {candidate.micro_batch: float(num)}
        key = (candidate.encoder.dp, size)
        if key not in self._counts:
            some = min(num, self._job.period(size))
            counts = Counter(units for lane in all_units(self._job, candidate, name, some) for units in lane)
            # Whole periods: what is left over is not counted.
            share = num // some * some / sum(counts.values())
            self._counts[key] = {units: count * share for units, count in counts.items()}
        return self._counts[key]

    def _stage_seconds(self, candidate: MimoCandidate, name: str, units: int) -> list[float]:
        """Return what both passes of each stage take for so many units."""
        module = candidate.module(name)
        key = (name, module, candidate.recomputes(name), candidate.expert_parallel, units)
        if key not in self._seconds:
            passes = [passes_of(self._job, candidate, name, stage) for stage in range(module.pp)]
            self._seconds[key] = [each.forward(units).total_s + each.backward(units).total_s for each in passes]
        return self._seconds[key]
