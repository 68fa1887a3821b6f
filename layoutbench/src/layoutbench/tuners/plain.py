"""Tuners that need no package: every layout in random order, and in the order of the axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from layoutbench.protocol import Params, Problem, Result


class Listed:
    """Try layouts in an order that is known from the start."""

    def __init__(self, order: Sequence[Params]) -> None:
        self._left = list(order)

    def ask(self) -> Params | None:
        """Return the next layout."""
        return self._left.pop(0) if self._left else None

    def tell(self, params: Params, result: Result) -> None:
        """Learn nothing."""


class Random(Listed):
    """Try layouts in random order."""

    endless = True

    def __init__(self, problem: Problem, seed: int) -> None:
        order = np.random.default_rng(seed).permutation(len(problem.layouts))
        super().__init__([problem.layouts[number] for number in order])


class Grid(Listed):
    """Try layouts in the order of the axes' choices, the last axis fastest: the order they come in."""

    endless = True

    def __init__(self, problem: Problem, seed: int) -> None:
        super().__init__(problem.layouts)
