"""Points drawn at random, the same ones for the same seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

from zenith_tune.errors import UsageError
from zenith_tune.strategies.base import EvalFunction, StrategyRegistry, TuningStrategy, side_by_side, single
from zenith_tune.study.parameters import Direction, Parameter


@StrategyRegistry.register("random")
class RandomStrategy(TuningStrategy):
    """Random points until the budget is spent; a resumed study draws the same ones again and continues from there."""

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = checked_seed(seed)

    def optimize(self, eval_fn: EvalFunction, search_space: Mapping[str, Parameter], direction: Direction) -> None:
        rng = random.Random(self.seed)
        drawn = ({name: parameter.sample(rng) for name, parameter in search_space.items()} for _ in itertools.count())
        side_by_side(eval_fn, map(single, drawn))


def checked_seed(seed: int) -> int:
    """Return a seed that every random number generator accepts, or raise `UsageError`."""
    if not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise UsageError(f"seed must be a whole number from 0 to 2**32 - 1, but got {seed!r}", hint="change it")
    return seed
