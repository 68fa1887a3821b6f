"""Runs strategies on recorded landscapes, as their users would."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from replay_landscape import NUM_STEPS, Find, Landscape, Recorded

from zenith_tune.calibrate.calibration_file import save_calibration
from zenith_tune.errors import (
    ConsecutiveDuplicateLimitExceeded,
    ConsecutivePruneLimitExceeded,
    StudyLimitReached,
    TrialExhausted,
)
from zenith_tune.estimates.calibration import Calibration
from zenith_tune.layouts.layout import Layout
from zenith_tune.strategies.base import EvalFunction, StrategyRegistry, TunedJob, TuningStrategy
from zenith_tune.strategies.grid import GridStrategy
from zenith_tune.strategies.guided.strategy import GuidedStrategy
from zenith_tune.strategies.megatron_heuristic import FIXED, MegatronHeuristicStrategy
from zenith_tune.strategies.optuna import OptunaStrategy
from zenith_tune.strategies.random import RandomStrategy
from zenith_tune.study.parameters import CategoricalParameter, Direction, Parameter, Value
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.tuning.config import Limits

SEEDED: Mapping[str, Callable[[int], TuningStrategy]] = {
    "optuna": lambda seed: OptunaStrategy(seed=seed),
    "random": lambda seed: RandomStrategy(seed=seed),
}
STRATEGIES = ("guided", "guided-uncalibrated", "optuna", "random", "grid", "megatron-heuristic")
LIKE_MEGATRON = ("megatron", "nanotron")
"""How the names of frameworks begin whose layouts have the parts that the heuristic turns."""
GRANULARITY = {"full": "full/uniform", "selective": "selective"}


class ReplayTrials(EvalFunction):
    """Answer a strategy as a study on the real cluster would have, and remember what it tried.

    A point that is not in the record is pruned, and one that was tried is answered again: neither is a trial. `find`
    says which recorded layout a point stands for, where the strategy has a search space of its own. `until_best` ends
    the study once nothing faster is left to find.
    """

    def __init__(
        self,
        landscape: Landscape,
        *,
        budget: int | None = None,
        limits: Limits | None = None,
        until_best: bool = False,
        find: Find | None = None,
    ) -> None:
        self.tried: list[Recorded] = []
        self.num_pruned = self.num_repeated = 0
        self._landscape = landscape
        self._budget = len(landscape.recorded) if budget is None else budget
        self._limits = limits or Limits(consecutive_duplicates=None, consecutive_prunes=None)
        self._until_best = until_best
        self._find = find or landscape.finder()
        self._answered: dict[int, Trial] = {}
        self._pruned_in_a_row = self._repeated_in_a_row = 0

    def __call__(self, params: Mapping[str, Value]) -> float | None:
        """Return the recorded step time, or None where the layout crashed or is not in the record."""
        return self.run(params).value

    def run(self, params: Mapping[str, Value], why: str = "") -> Trial:
        """Return the recorded trial."""
        if self._until_best and any(item.step_s == self._landscape.best_s for item in self.tried):
            raise TrialExhausted("nothing faster is left to find")
        item = self._find(params)
        if item is None:
            return self._pruned(params)
        if id(item) in self._answered:
            return self._repeated(id(item))
        if len(self.tried) >= self._budget:
            raise TrialExhausted(f"the budget of {self._budget} trials is spent")
        self._pruned_in_a_row = self._repeated_in_a_row = 0
        self.tried.append(item)
        self._answered[id(item)] = trial = _trial(item, params, why)
        return trial

    def submit(self, params: Mapping[str, Value], why: str = "") -> Future[Trial]:
        """Return the recorded trial as one that is done."""
        future: Future[Trial] = Future()
        future.set_result(self.run(params, why))
        return future

    def _pruned(self, params: Mapping[str, Value]) -> Trial:
        self.num_pruned += 1
        self._pruned_in_a_row += 1
        limit = self._limits.consecutive_prunes
        if limit is not None and self._pruned_in_a_row > limit:
            raise ConsecutivePruneLimitExceeded(f"{limit} pruned points in a row")
        return Trial(params=params, outcome=Outcome.PRUNED, cause="not in the record")

    def _repeated(self, key: int) -> Trial:
        self.num_repeated += 1
        self._pruned_in_a_row = 0
        self._repeated_in_a_row += 1
        limit = self._limits.consecutive_duplicates
        if limit is not None and self._repeated_in_a_row > limit:
            raise ConsecutiveDuplicateLimitExceeded(f"{limit} points in a row had been tried before")
        return self._answered[key]


def _trial(item: Recorded, params: Mapping[str, Value], why: str) -> Trial:
    if item.step_s is None:
        return Trial(params=params, outcome=Outcome.OOM, duration_s=item.duration_s, why=why)
    return Trial(
        params=params,
        outcome=Outcome.OK,
        value=item.step_s,
        step_s=item.step_s,
        duration_s=item.duration_s,
        # Of a trial whose whole duration was recorded, the number of steps was not.
        num_samples=NUM_STEPS if item.wall_s is None else None,
        peak_memory_bytes=item.peak_memory_bytes,
        why=why,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The trials of one strategy on one landscape."""

    strategy: str
    landscape: str
    source: str
    seed: int = 0
    behind: list[float]
    """Of every trial, the fraction by which it was slower than the best; infinite where it crashed."""
    gpu_seconds: list[float]
    num_candidates: int
    all_gpu_seconds: float
    """What trying every layout of the landscape costs."""
    ends_by_itself: bool
    why_not: str = ""
    """Why the strategy cannot search the landscape at all."""

    def trials_to(self, share: float) -> int | None:
        """Return how many trials it took to come within `share` of the best, or None where it never did."""
        return next((i for i, behind in enumerate(self.behind, 1) if behind <= share), None)


def replay_all(
    landscape: Landscape, calibration: Calibration, *, names: tuple[str, ...] = STRATEGIES, num_seeds: int
) -> list[Replay]:
    """Run every strategy of `names` on one landscape, those that draw at random once per seed."""
    found = []
    for name in names:
        seeds = range(num_seeds) if name in SEEDED else range(1)
        found += [_replay(name, landscape, calibration, seed) for seed in seeds]
    return found


def _replay(name: str, landscape: Landscape, calibration: Calibration, seed: int) -> Replay:
    if name in SEEDED:
        return replay(name, SEEDED[name](seed), landscape, seed=seed)
    if name == "grid":
        return replay(name, GridStrategy(), landscape)
    if name == "megatron-heuristic":
        return _replay_heuristic(name, landscape)
    if name not in ("guided", "guided-uncalibrated"):
        return replay(name, StrategyRegistry.get(name)(), landscape)
    start = calibration if name == "guided" else Calibration(framework=landscape.subject.job.framework.name)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "calibration.json")
        save_calibration(start, file)
        return replay(name, GuidedStrategy(calibration=str(file), learn=False), landscape)


def replay(
    name: str,
    strategy: TuningStrategy,
    landscape: Landscape,
    *,
    seed: int = 0,
    space: Mapping[str, Parameter] | None = None,
    find: Find | None = None,
) -> Replay:
    """Run any strategy on one landscape.

    `space` and `find` are for one that has a search space of its own, and say what its points stand for.
    """
    ends = strategy.ends_by_itself
    limits = None if ends else Limits(consecutive_duplicates=100, consecutive_prunes=1000)
    trials = ReplayTrials(landscape, limits=limits, until_best=not ends, find=find)
    strategy.prepare(tuned_job(landscape))
    with contextlib.suppress(StudyLimitReached):
        strategy.optimize(trials, space or landscape.space, Direction.MINIMIZE)
    return _result(name, landscape, trials.tried, seed=seed, ends_by_itself=ends)


def tuned_job(landscape: Landscape) -> TunedJob:
    """Return the job as a preset would describe it."""
    find = landscape.finder()

    def layout(params: Mapping[str, Value]) -> Layout | None:
        item = find(params)
        return item.layout if item else None

    return TunedJob(
        subject=landscape.subject, layout=layout, points=lambda: [item.point for item in landscape.recorded]
    )


def _result(
    name: str, landscape: Landscape, tried: list[Recorded], *, seed: int = 0, ends_by_itself: bool, why_not: str = ""
) -> Replay:
    return Replay(
        strategy=name,
        landscape=landscape.name,
        source=landscape.source,
        seed=seed,
        behind=[landscape.behind(item) for item in tried],
        gpu_seconds=[item.gpu_seconds for item in tried],
        num_candidates=len(landscape.recorded),
        all_gpu_seconds=math.fsum(item.gpu_seconds for item in landscape.recorded),
        ends_by_itself=ends_by_itself,
        why_not=why_not,
    )


def _replay_heuristic(name: str, landscape: Landscape) -> Replay:
    framework, num_gpus = landscape.subject.job.framework.name, landscape.subject.cluster.num_gpus
    why_not = ""
    if not framework.startswith(LIKE_MEGATRON):
        why_not = f"{framework} has no tensor or expert parallelism, nor ways to recompute, that it could turn"
    elif num_gpus & (num_gpus - 1):
        why_not = f"{num_gpus} GPUs are no power of two"
    if why_not:
        return _result(name, landscape, [], ends_by_itself=True, why_not=why_not)
    strategy = MegatronHeuristicStrategy(n_gpus=num_gpus)
    return replay(name, strategy, landscape, space=heuristic_space(landscape), find=heuristic_find(landscape))


def heuristic_space(landscape: Landscape) -> dict[str, Parameter]:
    """Return the sizes of the record as a search space of the heuristic."""
    layouts = [item.layout for item in landscape.recorded]
    sizes = {
        name: sorted({1, *(getattr(layout, name) for layout in layouts)}) for name in ("tp", "pp", "cp", "ep", "etp")
    }
    sizes["mbs"] = sorted({1, *(layout.micro_batch for layout in layouts)})
    fixed: dict[str, Value] = {name: value for name, value in FIXED.items() if name not in sizes}
    return {
        **{name: CategoricalParameter(choices) for name, choices in sizes.items()},
        "recompute_granularity": CategoricalParameter(list(GRANULARITY)),
        **{name: CategoricalParameter([value]) for name, value in fixed.items()},
    }


def heuristic_find(landscape: Landscape) -> Find:
    """Return what a point of the heuristic stands for in the record.

    Where only one way to recompute was recorded, what it says of recomputation is ignored; ZeRO is 1 where that was
    recorded, else 0.
    """
    recomputes = len({item.layout.recompute for item in landscape.recorded}) > 1
    by_key: dict[tuple[Value, ...], Recorded] = {}
    for item in sorted(landscape.recorded, key=lambda item: item.layout.zero != 1):
        layout = item.layout
        way = layout.recompute if recomputes else ""
        key = (layout.tp, layout.pp, layout.cp, layout.ep, layout.etp, layout.micro_batch, way)
        by_key.setdefault(key, item)

    def find(params: Mapping[str, Value]) -> Recorded | None:
        sizes = (params[name] for name in ("tp", "pp", "cp", "ep", "etp", "mbs"))
        way = GRANULARITY[str(params["recompute_granularity"])] if recomputes else ""
        return by_key.get((*sizes, way))

    return find


def within_reach(landscape: Landscape, share: float) -> bool:
    """Tell whether the heuristic may ask for any layout within `share` of the best."""
    find, space = heuristic_find(landscape), heuristic_space(landscape)
    sizes: dict[str, Value] = {name: FIXED[name] for name in ("pp", "cp", "etp")}
    found = [
        find({**sizes, "tp": tp, "ep": ep, "mbs": mbs, "recompute_granularity": way})
        for tp in space["tp"].grid(0)
        for ep in space["ep"].grid(0)
        for mbs in space["mbs"].grid(0)
        for way in GRANULARITY
    ]
    return any(item is not None and landscape.behind(item) <= share for item in found)
