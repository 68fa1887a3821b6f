"""What became of each lever of a study: kept, no faster, failed or not tried, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from zenith_tune.study.trial import Findings


class LeverStatus(StrEnum):
    """The result of a lever."""

    KEPT = "kept"
    NO_FASTER = "no faster"
    FAILED = "failed"
    NOT_TRIED = "not tried"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverGain:
    """The gain of levers that were turned on at once."""

    levers: tuple[str, ...]
    speedup: float
    numerics: bool = False
    """Whether they may change what the model learns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverResult:
    """The result of one lever, by the last trial that turned it on."""

    lever: str
    status: LeverStatus = LeverStatus.NOT_TRIED
    trial: int | None = None
    beside: tuple[str, ...] = ()
    """The levers that this trial turned on with it."""
    speedup: float | None = None
    """The speedup of that trial over the best before it; None where it failed."""
    why: str = ""
    is_cut_off: bool = False
    """Whether the study ended before its turn."""


def lever_table(results: Sequence[LeverResult]) -> Findings | None:
    """Return the results as a table, those that were kept first; None where there were no levers."""
    if not results:
        return None
    order = list(LeverStatus)
    rows = sorted(results, key=lambda result: order.index(result.status))
    return Findings(
        title="performance settings on the best layout, each with its gain over the best run before it",
        columns=("lever", "result", "trial", "gain", "why"),
        rows=tuple(_row(result) for result in rows),
    )


def _row(result: LeverResult) -> tuple[str, ...]:
    num = len(result.beside)
    beside = f"one of {num + 1} turned on together" if num > 1 else f"together with {result.beside[0]}" if num else ""
    return (
        result.lever,
        result.status,
        "" if result.trial is None else str(result.trial),
        "" if result.speedup is None else f"{result.speedup - 1:+.1%}",
        ": ".join(filter(None, (beside, result.why))),
    )


def results_from_json(content: Iterable[Mapping[str, Any]]) -> list[LeverResult]:
    """Return the results that a record holds; none where another release wrote them in another form."""
    try:
        return [
            LeverResult(**{**each, "status": LeverStatus(each["status"]), "beside": tuple(each["beside"])})
            for each in content
        ]
    except (KeyError, TypeError, ValueError):
        return []


def cut_off_sentence(results: Iterable[LeverResult]) -> str:
    """Say which levers the end of the study left untried; nothing where each had its turn."""
    left = [result for result in results if result.is_cut_off]
    return (
        f"performance settings not tried: {', '.join(result.lever for result in left)} ({left[0].why})" if left else ""
    )
