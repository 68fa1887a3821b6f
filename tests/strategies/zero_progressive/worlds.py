"""A machine that only exists on paper: each point has a memory and a speed by simple formulas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from zenith_tune.errors import TrialExhausted
from zenith_tune.strategies.base import EvalFunction, TunedJob
from zenith_tune.strategies.zero_progressive.feasibility import ZeroSubject
from zenith_tune.strategies.zero_progressive.strategy import ZeroProgressiveStrategy
from zenith_tune.study.parameters import CategoricalParameter, Direction, Parameter, Value
from zenith_tune.study.trial import Outcome, Trial

Point = Mapping[str, Value]


def growing(point: Point) -> float:
    """Return a speed that grows with the micro-batch, a little less at each stage."""
    return 1000 / (1 + 2 / int(point["mbs"])) * (1 - 0.02 * int(point["stage"]))


@dataclass
class World(EvalFunction):
    """Answer a strategy by formulas, and remember what it ran."""

    speed: Callable[[Point], float] = growing
    edges: Mapping[int, int] = field(default_factory=dict)
    """The largest micro-batch that fits, by stage; any where nothing is said."""
    fits: Callable[[Point], bool] = lambda point: True
    peak: Callable[[Point], float] | None = None
    broken: tuple[int, ...] = ()
    """Stages that end in an error."""
    pruned: Callable[[Point], str | None] = lambda point: None
    budget: int = 1000
    runs: list[dict[str, Value]] = field(default_factory=list)
    whys: list[str] = field(default_factory=list)

    def __call__(self, params: Point) -> float | None:
        return self.run(params).value

    def run(self, params: Point, why: str = "") -> Trial:
        if (reason := self.pruned(params)) is not None:
            return Trial(params=params, outcome=Outcome.PRUNED, cause=reason)
        if len(self.runs) >= self.budget:
            raise TrialExhausted("the budget is spent")
        self.runs.append(dict(params))
        self.whys.append(why)
        stage, mbs = int(params["stage"]), int(params["mbs"])
        if stage in self.broken:
            return Trial(params=params, outcome=Outcome.ERROR, cause="RuntimeError: broken")
        if mbs > self.edges.get(stage, mbs) or not self.fits(params):
            return Trial(params=params, outcome=Outcome.OOM, cause="CUDA out of memory")
        peak = round(self.peak(params)) if self.peak else None
        return Trial(
            params=params, outcome=Outcome.OK, value=self.speed(params), unit="samples/s", peak_memory_bytes=peak
        )

    def submit(self, params: Point, why: str = "") -> Future[Trial]:
        future: Future[Trial] = Future()
        future.set_result(self.run(params, why))
        return future

    def at(self, stage: int) -> list[int]:
        """Return the micro-batches that were run at a stage, in order."""
        return [int(run["mbs"]) for run in self.runs if run["stage"] == stage]


def space(
    micro_batches: tuple[int, ...] = (1, 2, 4, 8, 16),
    stages: tuple[int, ...] = (0, 1, 2, 3),
    **others: tuple[Value, ...],
) -> dict[str, Parameter]:
    choices = {"stage": stages, "mbs": micro_batches, **others}
    return {name: CategoricalParameter(values) for name, values in choices.items()}


@dataclass
class Search:
    """A finished search."""

    world: World
    strategy: ZeroProgressiveStrategy
    notes: list[str]

    @property
    def reasons(self) -> dict[str, str]:
        """What the summary says of each stage."""
        findings = self.strategy.findings()
        assert findings is not None
        return {row[0]: row[-1] for row in findings.rows}


def search(
    world: World,
    search_space: Mapping[str, Parameter] | None = None,
    *,
    direction: Direction = Direction.MAXIMIZE,
    subject: ZeroSubject | None = None,
    num_slots: int = 1,
    strategy: ZeroProgressiveStrategy | None = None,
) -> Search:
    notes: list[str] = []
    chosen = strategy or ZeroProgressiveStrategy()
    chosen.prepare(TunedJob(subject=subject, tell=notes.append, num_slots=num_slots))
    chosen.optimize(world, search_space or space(), direction)
    return Search(world=world, strategy=chosen, notes=notes)
