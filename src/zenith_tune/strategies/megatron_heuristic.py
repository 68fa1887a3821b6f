"""The two-stage heuristic for Megatron: find what fits first, then make it fast."""

from __future__ import annotations

from collections.abc import Generator, Mapping

from zenith_tune.errors import UsageError
from zenith_tune.strategies.base import (
    EvalFunction,
    StrategyRegistry,
    TuningStrategy,
    listed_choices,
    side_by_side,
    single,
)
from zenith_tune.study.parameters import Direction, Parameter, Params, Value
from zenith_tune.study.trial import Trial
from zenith_tune.units import whole

FIXED: Mapping[str, Value] = {
    "pp": 1,
    "cp": 1,
    "etp": 1,
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
    "vit_gradient_checkpointing": "true",
}
NEEDED: tuple[tuple[str, Value], ...] = (
    *FIXED.items(),
    ("mbs", 1),
    ("recompute_granularity", "full"),
    ("recompute_granularity", "selective"),
)


@StrategyRegistry.register("megatron-heuristic")
class MegatronHeuristicStrategy(TuningStrategy):
    """Tensor and expert parallelism first, then the micro-batch and recomputation; always in the same order.

    Stage 1 tries every (tp, ep) that divides the GPUs at micro-batch 1 with full recomputation and keeps the best ep
    of each tp. Stage 2 takes each of these pairs and raises the micro-batch until a trial fails, first with selective
    recomputation, then with full. A parameter that the strategy does not know keeps its first choice.
    """

    ends_by_itself = True

    def __init__(self, *, n_gpus: int, **kwargs: object) -> None:
        count = whole(str(n_gpus)) or 0  # a preset's arguments, which may be passed on to it, are often text
        if not count or count & (count - 1):
            hint = "use a power of two, or --strategy optuna or grid"
            raise UsageError(f"megatron-heuristic needs n_gpus to be a power of two, but got {n_gpus}", hint=hint)
        self.n_gpus = count

    def optimize(self, eval_fn: EvalFunction, search_space: Mapping[str, Parameter], direction: Direction) -> None:
        climb = _Climb(_choices(search_space), direction)
        pairs = [(tp, ep) for tp, eps in self._pairs(climb.choices).items() for ep in eps]
        points = [climb.point(tp=tp, ep=ep, mbs=1, recompute_granularity="full") for tp, ep in pairs]
        values: dict[int, dict[int, float | None]] = {}
        for (tp, ep), trial in zip(pairs, side_by_side(eval_fn, map(single, points)), strict=True):
            values.setdefault(tp, {})[ep] = trial.value
        best_ep = {tp: climb.best(of_tp) for tp, of_tp in values.items()}
        side_by_side(eval_fn, (climb.walk(tp, ep) for tp, ep in best_ep.items() if ep is not None))

    def max_trials(self, search_space: Mapping[str, Parameter]) -> int:
        choices = _choices(search_space)
        pairs = self._pairs(choices)
        per_tp = 2 * len(_from(1, choices["mbs"])) - 1
        return sum(len(eps) + per_tp for eps in pairs.values() if eps)

    def expected_trials(self, search_space: Mapping[str, Parameter]) -> int:
        """Return how many it takes where each climb ends halfway."""
        choices = _choices(search_space)
        pairs = [eps for eps in self._pairs(choices).values() if eps]
        return sum(len(eps) + len(_from(1, choices["mbs"])) for eps in pairs)

    def _pairs(self, choices: Mapping[str, tuple[Value, ...]]) -> dict[int, list[int]]:
        """Return the ep choices, ascending, that go with each tp choice, descending."""
        eps = _from(1, choices["ep"])
        return {tp: [ep for ep in eps if self.n_gpus % (tp * ep) == 0] for tp in reversed(_from(1, choices["tp"]))}


class _Climb:
    """The points of one search space, and their comparison."""

    def __init__(self, choices: Mapping[str, tuple[Value, ...]], direction: Direction) -> None:
        self.choices = choices
        self.direction = direction

    def point(self, **searched: Value) -> Params:
        """Return the point that has these values, the fixed ones, and the first choice of any other parameter."""
        known = {**FIXED, **searched}
        return {name: known.get(name, choices[0]) for name, choices in self.choices.items()}

    def walk(self, tp: int, ep: int) -> Generator[Params, Trial, None]:
        """Raise the micro-batch of one pair, first with selective recomputation, then with full."""
        best_mbs = yield from self._raise_mbs(tp=tp, ep=ep, granularity="selective", start=1)
        # Stage 1 ran micro-batch 1 with full recomputation.
        yield from self._raise_mbs(tp=tp, ep=ep, granularity="full", start=max(best_mbs or 1, 2))

    def _raise_mbs(self, *, tp: int, ep: int, granularity: str, start: int) -> Generator[Params, Trial, int | None]:
        """Raise the micro-batch from `start` until a trial fails, and return the best one."""
        values: dict[int, float | None] = {}
        for mbs in _from(start, self.choices["mbs"]):
            trial = yield self.point(tp=tp, ep=ep, mbs=mbs, recompute_granularity=granularity)
            values[mbs] = trial.value
            if values[mbs] is None:
                break
        return self.best(values)

    def best(self, values: Mapping[int, float | None]) -> int | None:
        """Return the key of the best value, the first of equals, or None where every trial failed."""
        best: int | None = None
        best_value = 0.0
        for key, value in values.items():
            if value is not None and (best is None or self.direction.better(value, than=best_value)):
                best, best_value = key, value
        return best


def _from(start: int, choices: tuple[Value, ...]) -> list[int]:
    return sorted(choice for choice in choices if isinstance(choice, int) and choice >= start)


def _choices(search_space: Mapping[str, Parameter]) -> dict[str, tuple[Value, ...]]:
    """Return each parameter's choices, or raise with the parameter that lacks what the strategy needs."""
    who, hint = "megatron-heuristic", "change the search space, or use --strategy optuna or grid"
    choices = listed_choices(search_space, {"tp": 1, "ep": 1, "mbs": 1}, strategy=who, hint=hint)
    for name, value in NEEDED:
        if name not in choices or not search_space[name].contains(value):
            listed = f"its choices are {list(choices[name])}" if name in choices else "it is not in the search space"
            raise UsageError(f"{who} needs {name!r} to hold {value!r}, but {listed}", hint=hint)
    return choices
