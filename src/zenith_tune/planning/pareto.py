"""Layouts that no other beats in step time, memory and GPUs together."""

from __future__ import annotations

from collections.abc import Iterable

from zenith_tune.planning.planned_layout import PlannedLayout

LEAST_SAVING = 0.1
"""A slower layout must save so much memory, as a fraction, to be worth a line."""
MAX_HALVINGS = 3


def halvings(num_gpus: int) -> list[int]:
    """Return a number of GPUs and its halves, down to an eighth.

    >>> halvings(64), halvings(6)
    ([64, 32, 16, 8], [6, 3])
    """
    sizes = [num_gpus]
    while sizes[-1] % 2 == 0 and len(sizes) <= MAX_HALVINGS:
        sizes.append(sizes[-1] // 2)
    return sizes


def thinned(front: Iterable[PlannedLayout]) -> list[PlannedLayout]:
    """Return the fastest of a front, and of the others those that save much memory over the one before."""
    kept: list[PlannedLayout] = []
    for point in sorted(front, key=lambda point: point.step_s):
        if not kept or point.memory_bytes <= (1 - LEAST_SAVING) * kept[-1].memory_bytes:
            kept.append(point)
    return kept


def unbeaten(points: list[PlannedLayout]) -> list[PlannedLayout]:
    """Return the points that no other beats, in their order."""
    return [point for point in points if not any(beats(other, point) for other in points)]


def beats(one: PlannedLayout, other: PlannedLayout) -> bool:
    """Tell whether one layout is no worse in time, memory and GPUs, and better in one of them."""
    a = (one.step_s, one.memory_bytes, one.layout.num_gpus)
    b = (other.step_s, other.memory_bytes, other.layout.num_gpus)
    return a != b and all(x <= y for x, y in zip(a, b, strict=True))
