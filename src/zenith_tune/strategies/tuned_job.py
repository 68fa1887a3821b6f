"""What a strategy may know of the job that it tunes, beyond the search space."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from zenith_tune.describe.plan_subject import PlanSubject
from zenith_tune.layouts.layout import Layout
from zenith_tune.study.parameters import Params, Value
from zenith_tune.study.trial import Trial


def _no_layout(params: Mapping[str, Value]) -> Layout | None:
    return None


def _no_points() -> Iterable[Params]:
    return ()


def _nothing() -> None:
    """Know nothing."""


def _unheard(line: str) -> None:
    """Say something where nobody listens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedJob:
    """Hold what a preset and the tuner know; a strategy that needs none of it ignores it."""

    subject: PlanSubject | None = None
    """Model, cluster and job, where the preset can tell them."""
    unplanned: str = "its preset knows no layouts"
    """Why there is no subject, and what would give one."""
    layout: Callable[[Mapping[str, Value]], Layout | None] = _no_layout
    """The layout that a point stands for."""
    points: Callable[[], Iterable[Params]] = _no_points
    """Every point that is worth a trial by the preset's own rules."""
    own_point: Callable[[], Params | None] = _nothing
    """The point that the user's own command stands for."""
    baseline: Callable[[], Trial | None] = _nothing
    """The run of that command, once there is one."""
    num_slots: int = 1
    """How many trials may run side by side."""
    folder: Path | None = None
    """Where to keep what a resumed study must find as it was."""
    tell: Callable[[str], None] = field(default=_unheard)
    """Says a line to the user."""
