"""The layouts that guided tuning chooses from, each with one point that stands for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.layout_batch import LayoutBatch, batch_of
from zenith_tune.study.parameters import Params, Value

MAX_CANDIDATES = 200_000
"""More are not told apart by a handful of trials, and take seconds to weigh after each."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Hold points and their layouts; points that differ in nothing that a layout has are one run under two names."""

    points: list[Params]
    layouts: list[Layout]

    @classmethod
    def of(
        cls,
        points: Iterable[Params],
        layout_of: Callable[[Mapping[str, Value]], Layout | None],
        *,
        has_experts: bool = True,
    ) -> Candidates:
        """Take the first point of each layout; how experts are split says nothing of a model that has none."""
        found: dict[Layout, Params] = {}
        for point in points:
            layout = layout_of(point)
            if layout is None:
                continue
            found.setdefault(layout if has_experts else replace(layout, ep=1, etp=1), point)
            if len(found) >= MAX_CANDIDATES:
                break
        return cls(list(found.values()), list(found))

    def index_of(self, layout: Layout) -> int | None:
        """Return the place of a layout, if it is among these."""
        return self.layouts.index(layout) if layout in self.layouts else None

    def __len__(self) -> int:
        return len(self.points)

    def batch(self) -> LayoutBatch:
        """Return the layouts as one batch."""
        return batch_of(self.layouts)
