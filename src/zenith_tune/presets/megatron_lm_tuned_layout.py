"""A layout together with what is tuned beside it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

from zenith_tune.layouts.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedLayout(Layout):
    """Hold what the planner cannot tell apart: to it they are one layout, to a study they are different runs."""

    overlap: str = "none"
    """Of data-parallel communication with compute: none, grads, or params, which is both."""
    tp_overlap: bool = False
    ep_overlap: bool = False
    module: str = ""
    """The one that selective recomputation takes; empty for those that the command has."""

    @classmethod
    def of(cls, layout: Layout) -> Self:
        """Return a layout with nothing beside it."""
        return cls(**{field.name: getattr(layout, field.name) for field in fields(layout)})
