"""What a study comes to, in one sentence and as values: how much faster and how sure, how full, what it cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from zenith_tune.study.budget import Budget
from zenith_tune.study.study import Study
from zenith_tune.study.trial import Trial
from zenith_tune.units import count, format_bytes, format_seconds, format_value

RUN_NOISE, RUN_NOISE_RUNS = 0.003, 2
"""Relative standard deviation between two runs of one command on an H200, and how many pairs of runs that is worth."""
SURE = 1.645
"""Standard deviations to either side of an interval of 90%."""
NEARLY_FULL = 0.95
"""Above this share of the memory a safer trial is named, and one below `SAFER` of it counts as safer."""
SAFER = 0.90


@dataclass(frozen=True, slots=True, kw_only=True)
class Safer:
    """Hold a trial that is nearly as fast and leaves more memory."""

    number: int
    speedup: float
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Hold what a study comes to."""

    sentence: str
    speedup: float | None = None
    """Over the user's own command: 1.43 is 43% more per second; None where there is nothing to compare."""
    low: float | None = None
    high: float | None = None
    """The interval that holds it with 90%."""
    is_confirmed: bool = False
    """Whether both ran again at the end."""
    ties: tuple[int, ...] = ()
    """Trials that are as fast as the best within the noise."""
    memory_share: float | None = None
    safer: Safer | None = None
    gpu_hours: float = 0.0
    cost: float | None = None
    """In dollars, where the price is known."""
    pays_after_hours: float | None = None
    """Of training with the best command until the study has paid for itself."""


def verdict_of(study: Study, budget: Budget, *, num_gpus: int, capacity_bytes: float | None = None) -> Verdict:
    """Return what a study comes to."""
    gpu_s = spent_s(study) * num_gpus
    best = study.best
    cost: dict[str, Any] = {
        "gpu_hours": gpu_s / 3600,
        "cost": None if budget.price is None else gpu_s / 3600 * budget.price,
    }
    spent = f"the study took {budget.cost(gpu_s)}"
    if best is None:
        own = study.baseline is not None and study.baseline.ok
        stays = "your own command stays the best" if own else "there is no best command"
        return Verdict(sentence=f"no trial went well: {stays}; {spent}", **cost)
    memory_share = best.peak_memory_bytes / capacity_bytes if best.peak_memory_bytes and capacity_bytes else None
    gain = study.gain
    if gain is None:
        found = f"best: trial {best.number}, {format_value(best.value or 0.0, best.unit)}"
        compared = (
            "your own command failed" if study.baseline else "your own command did not run, so no gain is claimed"
        )
        return Verdict(sentence=f"{found}; {compared}; {spent}", memory_share=memory_share, **cost)
    if study.fastest is study.baseline or gain <= 0:
        num = count(study.num_searched, "trial")
        return Verdict(sentence=f"no gain: none of {num} is faster than your own command; {spent}", speedup=1.0, **cost)
    half = SURE * gain_noise(study)
    confirmed = best.is_rerun and study.baseline is not None and study.baseline.is_rerun
    ties = tuple(trial.number or 0 for trial in _ties(study, half))
    safer = _safer(study, memory_share, capacity_bytes)
    pays_s = gpu_s / num_gpus / gain
    sentence = "; ".join(
        part
        for part in (
            _speed(1 + gain, half, is_confirmed=confirmed, word=_faster(best)),
            f"as fast within the noise: {', '.join(f'trial {number}' for number in ties)}" if ties else "",
            _memory(memory_share, safer),
            f"{spent} and pays for itself after {format_seconds(pays_s)} of training",
        )
        if part
    )
    return Verdict(
        sentence=sentence,
        speedup=1 + gain,
        low=(1 + gain) * (1 - half),
        high=(1 + gain) * (1 + half),
        is_confirmed=confirmed,
        ties=ties,
        memory_share=memory_share,
        safer=safer,
        pays_after_hours=pays_s / 3600,
        **cost,
    )


def spent_s(study: Study) -> float:
    """Return the seconds that all runs of a study took, one after the other."""
    return math.fsum((trial.duration_s or 0.0) * trial.num_runs for trial in study.runs)


def gain_noise(study: Study) -> float:
    """Return the relative standard deviation of the gain.

    Two errors for each of the two: the median's over its iterations, and that of one run against the next, which the
    runs that were repeated at the end tell.
    """
    between = _between_runs(study)
    variance = sum(
        (trial.spread or 0.0) ** 2 / max(trial.num_samples or 1, 1) + between**2
        for trial in (study.best, study.baseline)
        if trial is not None
    )
    return math.sqrt(variance)


def _between_runs(study: Study) -> float:
    """Return the relative standard deviation between two runs of one command, that of a cold first run left out."""
    squares = RUN_NOISE_RUNS * RUN_NOISE**2
    num = RUN_NOISE_RUNS
    for trial in study.trials:
        first = study.first_run(trial)
        if first is not None and first.value and trial.value:
            squares += math.log(abs(trial.value / first.value)) ** 2 / 2 if trial.value * first.value > 0 else 0.0
            num += 1
    return math.sqrt(squares / num)


def _ties(study: Study, half: float) -> list[Trial]:
    """Return the trials that are as good as the best within the noise; of one that ran again, its last run."""
    best = study.best
    again = [study.first_run(trial) for trial in study.trials if trial.is_rerun]
    return [
        trial
        for trial in study.trials
        if best is not None and best.value and trial.value and trial is not best
        if all(trial is not first for first in again)
        if abs(trial.value / best.value - 1) < half
    ]


def _safer(study: Study, memory_share: float | None, capacity_bytes: float | None) -> Safer | None:
    """Return the fastest trial that leaves memory free, where the best one does not."""
    if memory_share is None or memory_share < NEARLY_FULL or capacity_bytes is None:
        return None
    found = [
        (gain, trial)
        for trial in study.trials
        if trial.peak_memory_bytes and trial.peak_memory_bytes <= SAFER * capacity_bytes
        if (gain := study.gain_of(trial)) is not None and gain > 0
    ]
    if not found:
        return None
    gain, trial = max(found, key=lambda item: item[0])
    return Safer(number=trial.number or 0, speedup=1 + gain, memory_bytes=trial.peak_memory_bytes or 0)


def _faster(trial: Trial) -> str:
    is_speed = trial.step_s is not None or trial.unit.endswith(("/s", "/GPU", " s", "ms")) or trial.unit == "s"
    return "faster" if is_speed else "better"


def _speed(speedup: float, half: float, *, is_confirmed: bool, word: str) -> str:
    low, high = speedup * (1 - half), speedup * (1 + half)
    if low <= 1:
        return f"no gain beyond the noise: {speedup:.2f}x ({low:.2f} to {high:.2f})"
    how = "confirmed" if is_confirmed else "not confirmed"
    return f"{speedup:.2f}x {word} ({low:.2f} to {high:.2f}, {how})"


def _memory(share: float | None, safer: Safer | None) -> str:
    if share is None:
        return ""
    full = f"memory {share:.1%} full"
    if safer is None:
        return full
    return f"{full}: trial {safer.number} is {safer.speedup:.2f}x at {format_bytes(safer.memory_bytes)}"
