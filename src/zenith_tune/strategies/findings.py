"""What a strategy has found out besides the best point: a few lines and a table for the end of a study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zenith_tune.strategies.prediction import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Hold what is shown under the trials."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[str, ...] = ()
    predictions: Mapping[int, Prediction] = field(default_factory=dict)
    """What was expected of trials, by their numbers, where that differs from what the planner says of them."""
