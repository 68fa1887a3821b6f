from __future__ import annotations

from zenith_tune.strategies.zero_progressive.feasibility import MeasuredMemory
from zenith_tune.strategies.zero_progressive.rung import Rung, RungSearch
from zenith_tune.study.parameters import Direction, Params
from zenith_tune.study.trial import Outcome, Trial


def searched(spread: float) -> list[int]:
    """Return the micro-batches that were run: the second reads a little less than the first, the rest much more."""
    values, ran = {1: 100.0, 2: 99.0, 4: 180.0, 8: 181.0}, []

    def run(point: Params, why: str) -> Trial:
        mbs = int(point["mbs"])
        ran.append(mbs)
        return Trial(params=point, outcome=Outcome.OK, value=values[mbs], spread=spread, num_samples=25)

    rung = Rung(base={"stage": 0, "mbs": 1})
    search = RungSearch(rung, run, Direction.MAXIMIZE, 0.01, MeasuredMemory())
    search.run_at(1, "profile")
    search.find([1, 2, 4, 8], None, "search")
    return ran


def test_growth_does_not_end_on_noise() -> None:
    assert searched(spread=0.01) == [1, 2]
    assert 4 in searched(spread=0.5), "a step of -1% that may be off by 14% says nothing"
