"""Judge how `zenithtune doctor --against published` splits a gap, on published runs whose causes are known.

Pairs of one source that differ in one thing have one cause, whose factor is the measured one. Of three runs, of which
the second differs from the first in one thing and from the third in another, the first and the third have two causes,
each with its measured factor. Reported is how often the cause that counts most is named first, and how far off its
factor is: with the packaged coefficients, which were fitted to most of these runs, and for each source with those
that a fit to other authors gives, where there are enough of these.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from left_out_sources import fit_of
from places import measured_data
from published_runs import comparable

from zenith_calibration.calibrate.framework_fits import LEAST_LANDSCAPES, families_of
from zenith_calibration.calibrate.measured_rows import read_measured
from zenith_tune.calibrate.calibration_file import default_calibration
from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.calibrate.published_runs import PublishedRun
from zenith_tune.describe.cluster_spec import precision_class
from zenith_tune.doctor.speed_gap import CAUSES, Calibrations, GapCause, Settings, settings_of, split_gap
from zenith_tune.estimates.calibration import Calibration

LEFT_OUT = ("model", "machine")
"""Causes that are no choice of a run on given machines."""
LEAST_GAP = 1.1
"""The least measured ratio that is judged: smaller ones are within the noise of two runs."""
MOST = 10_000
"""The most cases of each kind, drawn at random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Two runs, what they differ in, and the measured factor of each cause."""

    mine: PublishedRun
    theirs: PublishedRun
    causes: dict[str, float]

    @property
    def is_clear(self) -> bool:
        """Whether one cause counts more than the others by more than the noise."""
        sizes = sorted((abs(math.log(factor)) for factor in (*self.causes.values(), 1.0)), reverse=True)
        return sizes[0] - sizes[1] >= math.log(LEAST_GAP)

    @property
    def largest(self) -> str:
        return max(self.causes, key=lambda name: abs(math.log(self.causes[name])))


class Table:
    """Published runs by what they have in common."""

    def __init__(self, runs: list[PublishedRun]) -> None:
        self.runs = runs
        keys = [{cause: key_of(run, cause) for cause in CAUSES} for run in self.runs]
        self._alike: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        self._keys = [
            {cause: (run.url, cause, *(value for name, value in each.items() if name != cause)) for cause in CAUSES}
            for run, each in zip(self.runs, keys, strict=True)
        ]
        self._own = keys
        for row, each in enumerate(self._keys):
            for key in each.values():
                self._alike[key].append(row)

    def others(self, row: int, cause: str) -> list[int]:
        """Return the runs that differ from one in nothing but a cause."""
        mine = self._own[row][cause]
        return [other for other in self._alike[self._keys[row][cause]] if self._own[other][cause] != mine]

    def single(self) -> Iterator[Case]:
        """Yield the pairs that differ in one thing, the slower run first."""
        for row, run in enumerate(self.runs):
            for cause in CAUSES:
                for other in self.others(row, cause) if cause not in LEFT_OUT else ():
                    if self.runs[other].flops_per_s > run.flops_per_s:
                        factor = self.runs[other].flops_per_s / run.flops_per_s
                        yield Case(mine=run, theirs=self.runs[other], causes={cause: factor})

    def double(self) -> Iterator[Case]:
        """Yield pairs that differ in two things, each of which a third run shows alone."""
        rows = list(range(len(self.runs)))
        random.Random(0).shuffle(rows)
        choices = [cause for cause in CAUSES if cause not in LEFT_OUT]
        for row in rows:
            for one in choices:
                for between in self.others(row, one)[:2]:
                    for two in choices:
                        for last in self.others(between, two)[:2] if two != one else ():
                            a, b, c = (self.runs[each].flops_per_s for each in (row, between, last))
                            yield Case(mine=self.runs[row], theirs=self.runs[last], causes={one: b / a, two: c / b})


def key_of(run: PublishedRun, cause: str) -> tuple[Any, ...]:
    """Return a run's settings of one cause, alike where only their names differ."""
    settings: Settings = settings_of(run.subject, run.layout)
    model, job = run.subject.model, run.subject.job
    settings |= {
        "model": (model.num_layers, model.hidden, model.num_experts),
        "framework": job.framework.name,
        "gpu": settings["gpu"].name,
        "precision": precision_class(job.precision),
    }
    return tuple(settings[name] for name in CAUSES[cause])


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A case, and what the split says of it."""

    case: Case
    found: tuple[GapCause, ...]
    rest: float
    """The factor that is not explained."""

    @classmethod
    def of(cls, case: Case, calibration: Calibrations = default_calibration) -> Judged:
        mine, theirs = (settings_of(run.subject, run.layout) for run in (case.mine, case.theirs))
        found = split_gap(mine, theirs, calibration)
        explained = math.prod(each.factor for each in found)
        return cls(case=case, found=found, rest=case.theirs.flops_per_s / case.mine.flops_per_s / explained)

    @property
    def is_named_first(self) -> bool:
        """Whether the cause that counts most has the largest factor of all, what is unexplained included."""
        sizes = {each.name: abs(math.log(each.factor)) for each in self.found}
        first = max(sizes, key=lambda name: sizes[name])
        agrees = (self.factor > 1) == (self.case.causes[self.case.largest] > 1)
        return first == self.case.largest and sizes[first] > abs(math.log(self.rest)) and agrees

    @property
    def is_before_others(self) -> bool:
        """Whether it is the first of the causes, whatever is unexplained."""
        return max(self.found, key=lambda each: abs(math.log(each.factor))).name == self.case.largest

    @property
    def factor(self) -> float:
        return next(each.factor for each in self.found if each.name == self.case.largest)

    @property
    def error(self) -> float:
        """How far off the factor of the largest cause is, relatively."""
        return math.exp(abs(math.log(self.factor / self.case.causes[self.case.largest]))) - 1


def summary(judged: list[Judged]) -> dict[str, float]:
    """Return how often the largest cause is named first, and the errors of its factor."""
    errors = sorted(each.error for each in judged)
    return {
        "cases": len(judged),
        "named_first": round(statistics.mean(each.is_named_first for each in judged), 3),
        "before_the_other": round(statistics.mean(each.is_before_others for each in judged), 3),
        "median_error": round(statistics.median(errors), 3),
        "error_of_90": round(errors[int(0.9 * (len(errors) - 1))], 3),
    }


def left_out(runs: list[MeasuredRun]) -> dict[tuple[str, str], Calibration]:
    """Return the calibration of each source and framework as other authors of the framework's family give it."""
    found: dict[tuple[str, str], Calibration] = {}
    for family, members in families_of(runs):
        fit = fit_of(family, members)
        for author in {run.author for run in members}:
            others = [row for row, run in enumerate(members) if run.author != author]
            if len({members[row].landscape for row in others}) >= LEAST_LANDSCAPES:
                time = fit.calibration(fit.fit(np.array(others)))
                keys = {(run.source, run.framework) for run in members if run.author == author}
                found |= {key: Calibration(framework=key[1], time=time) for key in keys}
    return found


def judge(table: Table, most: int = MOST, known: dict[tuple[str, str], Calibration] | None = None) -> dict[str, Any]:
    """Return the figures of pairs with one cause, by cause and by source, and of those with two.

    With calibrations by source and framework only the sources that have one are judged, each by its own.
    """

    def judged(cases: Iterable[Case]) -> list[Judged]:
        clear = [case for case in cases if case.is_clear and (known is None or _key(case) in known)]
        drawn = random.Random(0).sample(clear, min(most, len(clear)))
        return [Judged.of(case, default_calibration if known is None else partial(_own, known, case)) for case in drawn]

    single, double = judged(table.single()), judged(table.double())
    by_cause, by_source = defaultdict(list), defaultdict(list)
    for each in single:
        by_cause[next(iter(each.case.causes))].append(each)
        by_source[each.case.mine.source].append(each)
    return {
        "one cause": summary(single),
        **{f"one cause: {name}": summary(of) for name, of in sorted(by_cause.items())},
        **{f"one cause, {name}": summary(of) for name, of in sorted(by_source.items())},
        "two causes": summary(double),
    }


def _own(known: dict[tuple[str, str], Calibration], case: Case, framework: str) -> Calibration:
    return known.get((case.mine.source, framework), known[_key(case)])


def _key(case: Case) -> tuple[str, str]:
    return case.mine.source, case.mine.subject.job.framework.name


def main() -> None:
    """Print the figures, and write them where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=Path, help="JSON file to write the figures to")
    args = parser.parse_args()
    table = Table(comparable(measured_data() / "published"))
    known = left_out(read_measured(measured_data()))
    found = {"fitted to all sources": judge(table), "fitted to other authors": judge(table, known=known)}
    for title, cases in found.items():
        print(title)
        for name, figures in cases.items():
            print(f"  {name:<50}" + "  ".join(f"{key} {value:g}" for key, value in figures.items()))
    if args.output:
        args.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
