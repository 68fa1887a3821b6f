"""Count the trials that strategies need on made landscapes of phases: by phase, and over the product of all settings.

    python benchmarks/phase_search.py --landscapes 20

A landscape has a step of generation, log-probabilities and update, six settings of one phase each, and a memory that
all share. Each phase is fastest at a random place, and every measured time has 0.5% of noise.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterator, Mapping

from zenith_rl.strategy import PhasesStrategy
from zenith_tune.errors import TrialExhausted
from zenith_tune.strategies.base import PlainFunction, TunedJob, TuningStrategy
from zenith_tune.strategies.optuna import OptunaStrategy
from zenith_tune.strategies.random import RandomStrategy
from zenith_tune.study.parameters import CategoricalParameter, Direction, Params, Value
from zenith_tune.study.trial import PHASE, Outcome, Trial

SETTINGS: dict[str, tuple[str, tuple[Value, ...]]] = {
    "engine_tp": ("generation", (2, 1, 4, 8)),
    "engine_memory": ("generation", (0.5, 0.4, 0.6, 0.7, 0.8)),
    "log_prob_mbs": ("log-probs", (4, 2, 8, 16, 32)),
    "mbs": ("update", (4, 1, 2, 8, 16)),
    "recompute": ("update", (True, False)),
    "offload": ("update", (True, False)),
}
SPACE = {name: CategoricalParameter(values) for name, (_, values) in SETTINGS.items()}
OWN: Params = {name: values[0] for name, (_, values) in SETTINGS.items()}
NOISE, NEAR, MOST_TRIALS = 0.005, 0.02, 100


class Landscape(PlainFunction):
    """A job whose step has phases, with the trials that ran."""

    def __init__(self, seed: int) -> None:
        super().__init__(lambda params: self.run(params).value)
        draw = random.Random(seed)
        self.base_s = {
            "generation": draw.uniform(20, 80),
            "log-probs": draw.uniform(5, 20),
            "update": draw.uniform(15, 60),
        }
        self.effect: dict[tuple[str, Value], float] = {}
        self.memory: dict[tuple[str, Value], float] = {}
        for name, (_, values) in SETTINGS.items():
            ordered = sorted(values, key=float)
            best, width = draw.randrange(len(ordered)), draw.uniform(0.03, 0.12)
            size = draw.uniform(2, 8)
            for at, value in enumerate(ordered):
                self.effect[name, value] = width * abs(at - best)
                self.memory[name, value] = size * (at if type(value) is not bool else 2 * (not value))
        # What the user's own settings take, and some of what all the largest would.
        room = sum(max(self.memory[name, value] for value in values) for name, (_, values) in SETTINGS.items())
        self.capacity = self._bytes(OWN) + draw.uniform(0.3, 0.8) * (room - self._bytes(OWN))
        self._noise = random.Random(seed + 1)
        self.trials: list[Trial] = []

    def _bytes(self, point: Mapping[str, Value]) -> float:
        return sum(self.memory[name, value] for name, value in point.items())

    def seconds(self, point: Mapping[str, Value]) -> dict[str, float]:
        """Return the time of each phase; none where it does not fit."""
        if self._bytes(point) > self.capacity:
            return {}
        found = dict(self.base_s)
        for name, value in point.items():
            found[SETTINGS[name][0]] *= 1 + self.effect[name, value]
        return found

    def best_s(self) -> float:
        """Return the shortest step of all."""
        points = (
            dict(zip(SETTINGS, values, strict=True))
            for values in itertools.product(*(each for _, each in SETTINGS.values()))
        )
        return min(sum(found.values()) for point in points if (found := self.seconds(point)))

    def run(self, params: Mapping[str, Value], why: str = "") -> Trial:
        """Run a point, with noise."""
        if len(self.trials) == MOST_TRIALS:
            raise TrialExhausted("budget")
        found = {name: value * math.exp(self._noise.gauss(0, NOISE)) for name, value in self.seconds(params).items()}
        phases: dict[str, Value] = {f"{PHASE}{name}": seconds for name, seconds in found.items()}
        step_s, outcome = sum(found.values()), Outcome.OK if found else Outcome.OOM
        trial = Trial(
            params=dict(params),
            outcome=outcome,
            value=step_s or None,
            step_s=step_s or None,
            extra=phases,
        )
        self.trials.append(trial)
        return trial

    def needed(self) -> int | None:
        """Return after how many trials one was within a few percent of the best step; None where none was."""
        limit = (1 + NEAR) * self.best_s()
        near = (number for number, trial in enumerate(self.trials, 1) if self._true_s(trial) <= limit)
        return next(near, None)

    def behind(self) -> float:
        """Return how much longer the step is that was measured to be the shortest."""
        chosen = min((trial for trial in self.trials if trial.value), key=lambda trial: trial.value or math.inf)
        return self._true_s(chosen) / self.best_s() - 1

    def _true_s(self, trial: Trial) -> float:
        return sum(self.seconds(trial.params).values()) if trial.ok else math.inf


def study(seed: int, strategy: TuningStrategy) -> Landscape:
    """Return a landscape after a study of it that began with the user's own settings."""
    landscape = Landscape(seed)
    base = landscape.run(OWN)
    phases = {name: (phase,) for name, (phase, _) in SETTINGS.items()}
    strategy.prepare(TunedJob(phases=lambda: phases, own_point=lambda: dict(OWN), baseline=lambda: base))
    with contextlib.suppress(TrialExhausted):
        strategy.optimize(landscape, SPACE, Direction.MINIMIZE)
    return landscape


STRATEGIES: dict[str, Callable[[int], TuningStrategy]] = {
    "phases": lambda seed: PhasesStrategy(),
    "optuna": lambda seed: OptunaStrategy(seed=seed),
    "random": lambda seed: RandomStrategy(seed=seed),
}


def results(names: list[str], count: int) -> Iterator[tuple[str, list[Landscape]]]:
    """Yield each strategy with its landscapes after a study."""
    for name in names:
        yield name, [study(seed, STRATEGIES[name](seed)) for seed in range(count)]


def main() -> None:
    """Print a line for each strategy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--landscapes", type=int, default=20)
    for name, landscapes in results(list(STRATEGIES), parser.parse_args().landscapes):
        needed = [landscape.needed() for landscape in landscapes]
        missed, behind = needed.count(None), [landscape.behind() for landscape in landscapes]
        trials = statistics.mean(number or MOST_TRIALS for number in needed)
        ran = statistics.mean(len(landscape.trials) for landscape in landscapes)
        print(
            f"{name}: within {NEAR:.0%} of the best after {trials:.1f} trials (not in {missed} of {len(needed)}),"
            f" {ran:.1f} trials in all, {statistics.mean(behind):.1%} behind at the end"
        )


if __name__ == "__main__":
    main()
