"""What records come to: scores of each tuner with their intervals, curves, and performance profiles."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from layoutbench.runner import NEAR, Record

AFTER = (1, 5, 20)
"""After so many trials the regret is scored."""
NOTHING = 1.0
"""The regret while nothing ran, and the most that any counts with."""
RESAMPLES, CONFIDENCE = 2000, 0.95
CURVE = 50
"""A curve has so many trials."""
RATIOS = tuple(float(ratio) for ratio in np.geomspace(1, 128, 29).round(3))
"""Of a performance profile: so many times the cost of the best tuner."""

Measure = Callable[[Record], float]


def num_trials_to(record: Record, share: float = NEAR) -> int | None:
    """Return after how many trials what looked best was within `share` of the best; None where it never was."""
    return next((number for number, regret in enumerate(record.regrets, 1) if regret <= share), None)


def trials_to(record: Record) -> float:
    """Return the trials until within 1%; as many as there are layouts where it never came there."""
    found = num_trials_to(record)
    return record.num_layouts if found is None else found


def gpu_seconds_to(record: Record) -> float:
    """Return the GPU-seconds until within 1%, crashes included; those of every layout where it never came there."""
    found = num_trials_to(record)
    return record.all_gpu_seconds if found is None else math.fsum(record.gpu_seconds[:found])


def cost_share_to(record: Record) -> float:
    """Return the GPU-seconds until within 1% as a share of what trying every layout costs."""
    return gpu_seconds_to(record) / record.all_gpu_seconds


def crash_gpu_seconds(record: Record) -> float:
    """Return the GPU-seconds of trials that crashed until within 1%, or until the end."""
    until = num_trials_to(record)
    return math.fsum(
        cost for cost, crashed in zip(record.gpu_seconds[:until], record.crashed[:until], strict=True) if crashed
    )


def regret_after(record: Record, trials: int) -> float:
    """Return the regret after so many trials; of a tuner that ended before, where it ended."""
    so_far = record.regrets[:trials]
    return min(so_far[-1], NOTHING) if so_far else NOTHING


def tuner_scores(records: Sequence[Record]) -> dict[str, Any]:
    """Return the scores of one tuner: means over landscapes, each the mean over its seeds, with 95% intervals."""
    measures: dict[str, Measure] = {
        "trials_to_1pct": trials_to,
        "gpu_seconds_to_1pct": gpu_seconds_to,
        "cost_share_to_1pct": cost_share_to,
        "crash_gpu_seconds_to_1pct": crash_gpu_seconds,
        "reached_1pct": lambda record: float(num_trials_to(record) is not None),
        **{f"regret_after_{trials}": _after(trials) for trials in AFTER},
    }
    if all(record.stopped for record in records):
        measures |= {
            "trials_until_stop": lambda record: len(record.regrets),
            "gpu_seconds_until_stop": lambda record: math.fsum(record.gpu_seconds),
            "regret_at_stop": lambda record: regret_after(record, len(record.regrets)),
        }
    return {
        "landscapes": len({record.landscape for record in records}),
        "seeds": len({record.seed for record in records}),
        "cannot_search": sorted({record.landscape for record in records if record.why_not}),
        **{name: interval(_by_landscape(records, measure)) for name, measure in measures.items()},
        "curve": [round(fmean(_by_landscape(records, _after(trials))), 5) for trials in range(1, CURVE + 1)],
    }


def _after(trials: int) -> Measure:
    return lambda record: regret_after(record, trials)


def all_scores(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Return the scores of every tuner, the best first: by the trials until within 1%."""
    by_tuner: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_tuner[record.tuner].append(record)
    profiles = performance_profiles(records)
    scores = {name: tuner_scores(own) | {"profile": profiles[name]} for name, own in by_tuner.items()}
    return dict(sorted(scores.items(), key=lambda item: item[1]["trials_to_1pct"]["mean"]))


def interval(values: Sequence[float]) -> dict[str, float]:
    """Return the mean and its bootstrap interval, drawn over landscapes: 2000 draws, the same ones each time."""
    given = np.asarray(values, dtype=float)
    draws = np.random.default_rng(0).integers(len(given), size=(RESAMPLES, len(given)))
    edges = (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2
    low, high = np.quantile(given[draws].mean(axis=1), edges)
    return {"mean": round(float(given.mean()), 5), "low": round(float(low), 5), "high": round(float(high), 5)}


def performance_profiles(records: Sequence[Record]) -> dict[str, list[float]]:
    """Return for each tuner which share of the searches cost it at most 1, ... 128 times the cheapest tuner's.

    A search is one landscape with one seed and counts by its GPU-seconds until within 1%; one that never came there
    costs infinitely much. (Dolan and More, Benchmarking optimization software with performance profiles, 2002.)
    """
    costs: dict[str, dict[tuple[str, int], float]] = defaultdict(dict)
    for record in records:
        reached = num_trials_to(record) is not None
        costs[record.tuner][record.landscape, record.seed] = gpu_seconds_to(record) if reached else math.inf
    cheapest: dict[tuple[str, int], float] = {}
    for own in costs.values():
        for search, cost in own.items():
            cheapest[search] = min(cost, cheapest.get(search, math.inf))
    return {
        name: [
            round(fmean(cost <= ratio * cheapest[search] < math.inf for search, cost in own.items()), 5)
            for ratio in RATIOS
        ]
        for name, own in costs.items()
    }


def _by_landscape(records: Sequence[Record], measure: Measure) -> list[float]:
    found: dict[str, list[float]] = defaultdict(list)
    for record in records:
        found[record.landscape].append(measure(record))
    return [fmean(values) for values in found.values()]
