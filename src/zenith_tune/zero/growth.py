"""How a step's pace grows with the micro-batch, as far as the runs tell.

Legend: m micro-batch, p pace (time per sample), a what a sample takes, b what each micro-batch takes beside samples.

A global batch takes as many micro-batches as m leaves, so p = a + b / m: launches, waits and what else is paid once per
micro-batch is spread over its samples. Two runs give a and b.
"""

from __future__ import annotations

from collections.abc import Mapping

from zenith_tune.direction import Direction


class Growth:
    """Hold the values of runs that differ in their micro-batch alone.

    >>> growth = Growth({1: 10.0, 2: 15.0}, Direction.MAXIMIZE)
    >>> round(growth.expected_gain(2, 4), 3)
    0.333
    """

    def __init__(self, values: Mapping[int, float], direction: Direction) -> None:
        self.values = dict(sorted(values.items()))
        self.direction = direction

    @property
    def best(self) -> int | None:
        """The micro-batch of the best run, the smallest of equals."""
        best: int | None = None
        for mbs, value in self.values.items():
            if best is None or self.direction.better(value, than=self.values[best]):
                best = mbs
        return best

    def last_gain(self) -> float | None:
        """Return the gain of the largest micro-batch over one of half its size or less; None where there is none.

        A smaller step may gain less than the plateau and yet be one of many.
        """
        pair = self.last_step()
        return None if pair is None else self.direction.gain(self.values[pair[1]], over=self.values[pair[0]])

    def expected_gain(self, old: int, new: int) -> float | None:
        """Return the gain that p = a + b / m promises of one micro-batch over another; None where nothing is known."""
        if (pair := self.last_step()) is None:
            return None
        p1, p2 = (self._pace(self.values[mbs]) for mbs in pair)
        b = (p1 - p2) / (1 / pair[0] - 1 / pair[1])
        a = p2 - b / pair[1]
        before, after = a + b / old, a + b / new
        # Runs that grow faster than the law has room for say nothing of its end.
        return before / after - 1 if after > 0 and before > 0 else None

    def last_step(self) -> tuple[int, int] | None:
        """Return the last doubling, or more, that was measured."""
        last = max(self.values, default=0)
        half = max((mbs for mbs in self.values if 2 * mbs <= last), default=None)
        return None if half is None else (half, last)

    def _pace(self, value: float) -> float:
        return value if self.direction is Direction.MINIMIZE else 1 / value
