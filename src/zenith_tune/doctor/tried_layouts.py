"""The layouts that a study has run: what they bring was measured, and need not be predicted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import Layout
from zenith_tune.presets.base import TuningPreset

OF_ANOTHER_RELEASE = (TypeError, ValueError, LookupError, ArithmeticError, UsageError)
"""What a preset may do with points that are not its own."""


def tried_layouts(
    preset: TuningPreset, command: str, points: Iterable[Mapping[str, Any]], *, but: Layout
) -> frozenset[Layout]:
    """Return the layouts of the points that a preset understands, without one; the user's own command is no point."""
    found: set[Layout] = set()
    for params in points:
        try:
            layout = preset.planned_layout(command, params) if params else None
            found |= {layout} if layout not in (None, but) else set()
        except OF_ANOTHER_RELEASE:
            continue
    return frozenset(found)
