"""Every point of a grid, one after the other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from zenith_tune.errors import UsageError
from zenith_tune.strategies.base import EvalFunction, StrategyRegistry, TuningStrategy, side_by_side, single
from zenith_tune.study.parameters import Direction, Parameter, Value


@StrategyRegistry.register("grid")
class GridStrategy(TuningStrategy):
    """Every choice, and `grid_points` values of each numeric parameter; the last parameter changes fastest."""

    ends_by_itself = True

    def __init__(self, *, grid_points: int = 5) -> None:
        if grid_points < 1:
            raise UsageError(f"grid_points must be at least 1, but got {grid_points}", hint="give 1 or more")
        self.grid_points = grid_points

    def optimize(self, eval_fn: EvalFunction, search_space: Mapping[str, Parameter], direction: Direction) -> None:
        grid = itertools.product(*self._axes(search_space))
        points = (dict(zip(search_space, values, strict=True)) for values in grid)
        side_by_side(eval_fn, map(single, points))

    def max_trials(self, search_space: Mapping[str, Parameter]) -> int:
        return math.prod(len(axis) for axis in self._axes(search_space))

    def _axes(self, search_space: Mapping[str, Parameter]) -> list[list[Value]]:
        return [parameter.grid(self.grid_points) for parameter in search_space.values()]
