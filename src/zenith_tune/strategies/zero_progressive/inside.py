"""Inside a stage: the keys that are left, at the stage's best micro-batch."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from zenith_tune.describe.deepspeed_config import MEMORY_MODES, matters
from zenith_tune.errors import UnknownNameError
from zenith_tune.strategies.base import EvalFunction, await_first
from zenith_tune.strategies.zero_progressive.rung import NOT_RUN, RungSearch
from zenith_tune.study.parameters import Direction, Params, Value
from zenith_tune.study.trial import Trial

KINDS = ("grid", "random", "model")
MAX_POINTS = 20_000
"""More combinations are not distinguished by a few dozen trials."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class InsideRules:
    """Hold how the keys are searched, and when that ends."""

    kind: str
    patience: int
    max_trials: int
    seed: int


class InsideSearch:
    """Search the keys of one rung."""

    def __init__(
        self, eval_fn: EvalFunction, rules: InsideRules, num_slots: int, fits: Callable[[Params, Params], bool]
    ) -> None:
        self._eval_fn, self._rules, self._num_slots = eval_fn, rules, num_slots
        self._fits = fits
        """Whether a point fits the memory where another one did."""

    def run(self, rung: RungSearch, choices: Mapping[str, tuple[Value, ...]]) -> str | None:
        """Try other values of the keys that matter; returns what was done, in one line, where there are any."""
        axes, best = own_keys(choices, rung.rung.stage), rung.best
        if not axes or best is None or best.value is None:
            return None
        start = dict(best.params)
        proposals = Proposals(self._rules.kind, axes, start, self._rules.seed)
        known: dict[int, tuple[Params, float]] = {0: (start, best.value)}
        rules, without_gain = self._rules, 0
        while (left := min(rules.max_trials - rung.num_inside, rules.patience - without_gain)) > 0:
            points = proposals.next(min(self._num_slots, left), known, rung.direction)
            if not points:
                break
            for trial in self._side_by_side([point for point in points if self._fits(point, start)]):
                without_gain = _learn(rung, trial, known, without_gain)
        return f"inside {rung.rung.name}: {rung.num_inside} runs over {', '.join(axes)}"

    def _side_by_side(self, points: list[Params]) -> list[Trial]:
        why = "other keys at the best micro-batch"
        if self._num_slots == 1:
            return [self._eval_fn.run(point, why) for point in points]
        futures = [self._eval_fn.submit(point, why) for point in points]
        for future in futures:
            await_first([future])
        return [future.result() for future in futures]


def own_keys(choices: Mapping[str, tuple[Value, ...]], stage: int) -> dict[str, tuple[Value, ...]]:
    """Return the keys that have a choice and an effect at a stage, without those that decide about its memory."""
    return {
        name: values
        for name, values in choices.items()
        if name not in ("stage", "mbs", *MEMORY_MODES) and len(values) > 1 and matters(name, stage)
    }


def _learn(rung: RungSearch, trial: Trial, known: dict[int, tuple[Params, float]], without_gain: int) -> int:
    """Take a run in, and return how many in a row have gained nothing."""
    if trial.outcome in NOT_RUN and not trial.ok:
        return without_gain
    rung.num_inside += 1
    if trial.value is None:
        return without_gain + 1
    known[len(known)] = (dict(trial.params), trial.value)
    best = rung.best
    if best is None or best.value is None or rung.direction.better(trial.value, than=best.value):
        rung.best_inside = trial
        return 0
    return without_gain + 1
