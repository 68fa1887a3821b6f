"""Inside a stage: the keys that are left, at the stage's best micro-batch."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence

import numpy as np

from zenith_tune.describe.deepspeed_config import MEMORY_MODES, matters
from zenith_tune.strategies.zero_progressive.rung import Choices
from zenith_tune.study.parameters import Direction, Params, Value

KINDS = ("grid", "random", "model")
MAX_POINTS = 20_000
"""More combinations than a few dozen trials can tell apart."""
PRIOR, NOISE = 0.05, 0.01
"""Standard deviations of a key's effect on the logarithm of the value, and of a run's error."""

Known = Sequence[tuple[Mapping[str, Value], float]]
"""Points that ran, with their values."""


class Proposals:
    """Points that differ from `base` in the keys of `axes`, none twice."""

    def __init__(self, kind: str, axes: Mapping[str, Sequence[Value]], base: Params, seed: int = 0) -> None:
        self._kind, self._axes = kind, axes
        product = itertools.islice(itertools.product(*axes.values()), MAX_POINTS)
        # True and 1 are equal in Python, and different values here.
        own = [(type(base[name]), base[name]) for name in axes]
        changed = [(sum((type(v), v) != o for v, o in zip(each, own, strict=True)), each) for each in product]
        changed = [(num, each) for num, each in changed if num]
        if kind == "random":
            random.Random(seed).shuffle(changed)
        else:
            # Changing one key at a time shows the most about each.
            changed.sort(key=lambda item: item[0])
        self._left: list[Params] = [{**base, **dict(zip(axes, each, strict=True))} for _, each in changed]

    def next(self, count: int, known: Known, direction: Direction) -> list[Params]:
        """Return up to `count` points, given those that ran, the base among them."""
        found: list[Params] = []
        for _ in range(min(count, len(self._left))):
            index = self._most_promising(known, direction) if self._kind == "model" else 0
            found.append(self._left.pop(index))
        return found

    def _most_promising(self, known: Known, direction: Direction) -> int:
        """Return the point with the best value that is still likely, by a linear model of the logarithm of the value.

        A Bayesian regression on which choice each key has: mean and covariance of the weights from the known points,
        then mean and standard deviation of each point that is left.
        """
        known = [(point, value) for point, value in known if value > 0]
        if len(known) < 2:
            return 0
        sign = 1.0 if direction is Direction.MAXIMIZE else -1.0
        logs = np.array([sign * math.log(value) for _, value in known])
        seen = np.array([self._features(point) for point, _ in known])
        left = np.array([self._features(point) for point in self._left])
        weights = np.linalg.inv(seen.T @ seen / NOISE**2 + np.eye(seen.shape[1]) / PRIOR**2)
        mean = left @ weights @ seen.T @ (logs - logs.mean()) / NOISE**2
        spread = np.sqrt(np.einsum("ij,jk,ik->i", left, weights, left))
        return int(np.argmax(np.round(mean + spread, 9)))

    def _features(self, point: Mapping[str, Value]) -> list[float]:
        return [1.0, *(float(point[name] == each) for name, choices in self._axes.items() for each in choices)]


def own_keys(choices: Choices, stage: int) -> dict[str, tuple[Value, ...]]:
    """Return the keys that have a choice and an effect at a stage, without the memory modes."""
    return {
        name: values
        for name, values in choices.items()
        if name not in ("stage", "mbs", *MEMORY_MODES) and len(values) > 1 and matters(name, stage)
    }
