"""How much faster a trial is than the user's own command, by neighbouring runs: slow drift is in both, and cancels.

The rule and what it was checked against are in docs/study.md, "Confirming a gain".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from zenith_tune.study.parameters import Direction
from zenith_tune.study.trial import Trial

_MOST_LOG = 700.0
"""The logarithm of the largest ratio that is stated: a float holds little more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedGain:
    """The mean gain of a trial over the user's own command, by pairs of runs that came one after the other."""

    log: float
    """Logarithm of how many times as fast it is."""
    num_pairs: int
    error: float
    """Standard error of `log` by the iterations of the runs."""
    launches: float
    """Standard error of `log` by their launches, where that of one launch is 1."""


def paired_gain(own: Iterable[Trial], tried: Iterable[Trial], direction: Direction) -> PairedGain | None:
    """Return the gain of runs of a trial over those of the user's own command; None where no ratio can be stated."""
    runs = sorted([*own, *tried], key=lambda trial: trial.number)
    pairs = [(one, two) for one, two in itertools.pairwise(range(len(runs))) if _differ(runs[one], runs[two])]
    if not pairs or any((trial.value or 0.0) <= 0 for trial in runs):
        return None
    shares = [sum(index in pair for pair in pairs) / len(pairs) for index in range(len(runs))]
    shared = list(zip(shares, runs, strict=True))
    log = sum(share * math.log(trial.value or 1.0) * (1 if trial.is_baseline else -1) for share, trial in shared)
    return PairedGain(
        log=log * direction.sign,
        num_pairs=len(pairs),
        error=math.hypot(*(share * trial.standard_error for share, trial in shared)),
        launches=math.hypot(*shares),
    ) if abs(log) < _MOST_LOG else None  # fmt: skip


def _differ(one: Trial, two: Trial) -> bool:
    return one.is_baseline is not two.is_baseline
