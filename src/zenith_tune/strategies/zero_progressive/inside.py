"""Inside a stage: the keys that are left, at the stage's best micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from zenith_tune.strategies.base import EvalFunction
from zenith_tune.strategies.zero_progressive.axes import MEMORY_MODES, matters
from zenith_tune.strategies.zero_progressive.rung import NOT_RUN, RungSearch
from zenith_tune.study.parameters import Params, Value
from zenith_tune.study.trial import Trial
from zenith_tune.zero.proposals import Proposals


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
