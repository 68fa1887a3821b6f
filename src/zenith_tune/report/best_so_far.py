"""How the best of a study came about: the user's own command first, then each run that was faster than all before."""

from __future__ import annotations

import math

from zenith_tune.study.study import Study
from zenith_tune.study.trial import ALONE


def best_so_far(study: Study) -> list[tuple[int, float]]:
    """Return number and value of every run that was the fastest when it ended; the last of them is the study's."""
    base = [study.baseline] if study.baseline is not None else []
    runs = sorted([*base, *study.trials], key=lambda trial: trial.number or 0)
    again = {trial.identity for trial in runs if trial.is_alone}
    limit = study.fastest.value if study.fastest is not None else None
    found: list[tuple[int, float]] = []
    for trial in runs:
        # What ran again alone counts as it ran then.
        if trial.value is None or not math.isfinite(trial.value) or f"{trial.identity}{ALONE}" in again:
            continue
        # What only ran beside others, and was not believed in the end, does not count either.
        if limit is not None and study.direction.better(trial.value, than=limit):
            continue
        if not found or study.direction.better(trial.value, than=found[-1][1]):
            found.append((trial.number or 0, trial.value))
    return found
