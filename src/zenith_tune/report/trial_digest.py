"""The memory that a trial which ran out of it would have needed: what its last words tell, or else a bound."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zenith_tune.evaluators.failed_allocation import FailedAllocation
from zenith_tune.evaluators.failures.failures import FailureKind

Json = dict[str, Any]


def told_capacity(causes: Iterable[str | None]) -> float | None:
    """Return the memory of a GPU, as runs that were out of it tell."""
    found = (FailedAllocation.of(cause).capacity_bytes for cause in causes)
    return max((capacity for capacity in found if capacity), default=None)


def needed_memory(trials: Iterable[Json], capacity_bytes: float | None) -> dict[int, Json]:
    """Return what the trials that ran out of a GPU's memory needed, by number, and whether that is but a bound.

    Where a GPU's memory is not known either, what another trial took and went well with was not enough for these.
    """
    trials = list(trials)
    went_well = max((trial["memory_bytes"] or 0.0 for trial in trials if trial["value"] is not None), default=0.0)
    found = {}
    for trial in trials:
        if trial["state"] == "oom" and trial["failure"] != FailureKind.HOST_OUT_OF_MEMORY:
            words, predicted = FailedAllocation.of(trial["cause"]), (trial["predicted"] or {}).get("memory_bytes")
            limit = words.capacity_bytes or capacity_bytes or went_well
            bounds = (limit, words.tried_bytes, trial["memory_bytes"], predicted)
            needed = words.needed_bytes
            least = needed or max(bound or 0.0 for bound in bounds)
            found[trial["number"]] = {"bytes": least or None, "is_bound": needed is None}
    return found
