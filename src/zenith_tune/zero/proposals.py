"""Which values of the remaining keys to try next inside a stage: all by and by, at random, or as a model proposes."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence

import numpy as np

from zenith_tune.direction import Direction
from zenith_tune.errors import UnknownNameError
from zenith_tune.study.parameters import Params, Value

KINDS = ("grid", "random", "model")
MAX_POINTS = 20_000
"""More combinations are not told apart by a few dozen trials."""
PRIOR, NOISE = 0.05, 0.01
"""How far a key may move the logarithm of the value, and what a run is off by; standard deviations."""


def checked_kind(kind: str) -> str:
    """Return a way of searching, or raise with those that there are."""
    if kind not in KINDS:
        raise UnknownNameError("way of searching inside a stage", kind, KINDS)
    return kind


class Proposals:
    """Propose points that differ from `base` in the keys of `axes`, none twice.

    >>> axes = {"overlap_comm": (True, False), "reduce_scatter": (True, False)}
    >>> points = Proposals("grid", axes, {"stage": 2, "overlap_comm": True, "reduce_scatter": True})
    >>> [tuple(point.values()) for point in points.next(3, {}, Direction.MAXIMIZE)]
    [(2, True, False), (2, False, True), (2, False, False)]
    """

    def __init__(self, kind: str, axes: Mapping[str, Sequence[Value]], base: Params, seed: int = 0) -> None:
        self._kind, self._axes = checked_kind(kind), {name: tuple(choices) for name, choices in axes.items()}
        product = itertools.islice(itertools.product(*self._axes.values()), MAX_POINTS)
        own = tuple(base[name] for name in self._axes)
        values = [each for each in product if _key(each) != _key(own)]
        if kind == "random":
            random.Random(seed).shuffle(values)
        else:
            # What changes one key at a time tells the most about each.
            values.sort(key=lambda each: sum(_key((a,)) != _key((b,)) for a, b in zip(each, own, strict=True)))
        self._left: list[Params] = [{**base, **dict(zip(self._axes, each, strict=True))} for each in values]

    def next(self, count: int, known: Mapping[int, tuple[Params, float]], direction: Direction) -> list[Params]:
        """Return up to `count` points; `known` are points with their values, the base among them."""
        found: list[Params] = []
        for _ in range(min(count, len(self._left))):
            index = self._most_promising(list(known.values()), direction) if self._kind == "model" else 0
            found.append(self._left.pop(index))
        return found

    def _most_promising(self, known: list[tuple[Params, float]], direction: Direction) -> int:
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

    def _features(self, point: Params) -> list[float]:
        return [1.0, *(float(point[name] == each) for name, choices in self._axes.items() for each in choices)]


def _key(values: Sequence[Value]) -> tuple[tuple[type, Value], ...]:
    return tuple((type(value), value) for value in values)
