from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.planning.mimo_jobs import SLOW, mimo_job, module
from zenith_tune.direction import Direction
from zenith_tune.errors import UsageError
from zenith_tune.parameters import CategoricalParameter, Parameter, Value
from zenith_tune.planning.mimo_plan import MimoPlan, plan_mimo
from zenith_tune.strategies.findings import Findings
from zenith_tune.strategies.mimo_gain import TriedLayout, gain_lines
from zenith_tune.strategies.mimo_ranked import MimoRankedStrategy, Shortlisted
from zenith_tune.strategies.tuned_job import TunedJob
from zenith_tune.testing import ScriptedTrials, StrategyContract
from zenith_tune.trial import Outcome, Trial

PLAN: MimoPlan = plan_mimo(mimo_job(4, encoder=module(4, 1.0), items=(8, 0, 0, 0, 0, 0, 0, 0), link=SLOW))
CHOSEN = [*PLAN.ranked[:4], PLAN.homogeneous[0]]


def strategy() -> MimoRankedStrategy:
    shortlist = [Shortlisted(params={"which": which}, prediction=each) for which, each in enumerate(CHOSEN)]
    return MimoRankedStrategy.of(shortlist, len(PLAN.ranked))


def found(steps_s: Mapping[int, float | None]) -> Findings:
    """Run the shortlist with these steps in seconds, None for a failure, and return the findings."""
    tried = strategy()
    trials = ScriptedTrials(lambda params: steps_s[int(params["which"])])
    tried.optimize(trials, {"which": CategoricalParameter(list(range(5)))}, Direction.MINIMIZE)
    findings = tried.findings()
    assert findings is not None
    return findings


class TestMimoRankedStrategy(StrategyContract):
    def make(self) -> MimoRankedStrategy:
        return strategy()

    def space(self) -> dict[str, Parameter]:
        return {"which": CategoricalParameter([0, 1, 2, 3, 4])}

    def value(self, params: Mapping[str, Value]) -> float:
        return float(params["which"])


def test_the_shortlist_is_tried_in_its_order_and_no_more() -> None:
    tried, trials = strategy(), ScriptedTrials(lambda params: 1.0)
    assert tried.why_done() is None and tried.findings() is None
    tried.optimize(trials, {}, Direction.MAXIMIZE)
    assert [point["which"] for point in trials.points] == [0, 1, 2, 3, 4]
    assert tried.max_trials({}) == 5
    assert tried.why_done() == f"tried 5 of {len(PLAN.ranked)} planned layouts, 1 of them homogeneous"


def test_every_tried_layout_is_a_row_and_the_homogeneous_one_says_so() -> None:
    findings = found(dict.fromkeys(range(5), 1.0))
    assert [row[-1] for row in findings.rows[:4]] == [each.at.label for each in CHOSEN[:4]]
    assert findings.rows[4][-1] == f"{CHOSEN[4].at.label}, homogeneous"
    assert all(len(row) == len(findings.columns) for row in findings.rows)


def test_the_gain_is_measured_and_its_causes_are_named() -> None:
    first, second = found({0: 2.0, 1: 3.0, 2: 3.0, 3: None, 4: 3.0}).lines
    assert first.startswith("1.50x as fast as the best homogeneous layout")
    assert first.endswith(f"{CHOSEN[0].at.label} against {CHOSEN[4].at.label}")
    before, after = CHOSEN[4], CHOSEN[0]
    name = (
        "sums over tensor-parallel ranks" if before.tensor_s > after.tensor_s else "waiting (bubble and uneven lanes)"
    )
    assert f"by the plan: {name} " in second
    assert before.at.encoder.size == after.at.encoder.size == 4
    first_s, second_s = (f"{each.encoder_stage_s * 1e3:.1f} ms" for each in (before, after))
    assert first_s != second_s
    assert f"the encoder's 4 ranks take {first_s} -> {second_s} a micro-batch" in second


def test_a_homogeneous_layout_that_stays_the_fastest_is_told() -> None:
    (line,) = found({0: 3.0, 1: 3.0, 2: 3.0, 3: 3.0, 4: 2.0}).lines
    assert line.startswith("the best homogeneous layout stays the fastest")


@pytest.mark.parametrize(
    ("steps_s", "words"),
    [
        ({0: 3.0, 1: 4.0, 2: 4.0, 3: 4.0, 4: None}, "is the fastest; no homogeneous layout went well beside it"),
        (dict.fromkeys(range(5)), "no layout went well: nothing can be compared"),
    ],
)
def test_failures_leave_less_to_compare(steps_s: dict[int, float | None], words: str) -> None:
    (line,) = found(steps_s).lines
    assert words in line


def test_the_larger_value_is_the_better_where_a_rate_is_measured() -> None:
    trials = [Trial(params={}, outcome=Outcome.OK, value=value, step_s=1 / value) for value in (30.0, 20.0)]
    tried = [TriedLayout(prediction=at, trial=trial) for at, trial in zip((CHOSEN[0], CHOSEN[4]), trials, strict=True)]
    assert gain_lines(tried, Direction.MAXIMIZE)[0].startswith(
        "1.50x as fast as the best homogeneous layout, 50.0 ms -> 33.3 ms a step: "
    )
    assert gain_lines(tried, Direction.MINIMIZE)[0].startswith("the best homogeneous layout stays the fastest")


def test_a_shortlist_is_needed() -> None:
    with pytest.raises(UsageError, match="strategy mimo-ranked tries the layouts that preset mimo plans, but has none"):
        MimoRankedStrategy().prepare(TunedJob())
    strategy().prepare(TunedJob())
