from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from tests.mentions import mentions
from tests.mimo.planning.jobs import SLOW, mimo_job, module
from zenith_mimo.planning.candidate import MimoCandidate
from zenith_mimo.planning.prediction import MimoPlan, plan_mimo
from zenith_mimo.preset.strategy import MimoPoints, MimoRankedStrategy, TriedLayout, gain_lines
from zenith_tune.errors import UsageError
from zenith_tune.strategies.base import TunedJob
from zenith_tune.study.parameters import CategoricalParameter, Direction, Parameter, Params, Value
from zenith_tune.study.trial import Findings, Outcome, Trial
from zenith_tune.testing import ScriptedTrials, StrategyContract

JOB = mimo_job(4, encoder=module(4, 1.0), items=(8, 0, 0, 0, 0, 0, 0, 0), link=SLOW)
PLAN: MimoPlan = plan_mimo(JOB)
ORDER = [each.candidate for each in PLAN.ranked]


def candidate(params: Params) -> MimoCandidate:
    return ORDER[int(params["which"])]


def strategy() -> MimoRankedStrategy:
    points = MimoPoints(plan=PLAN, top=3, point=lambda layout: {"which": ORDER.index(layout)}, candidate=candidate)
    return MimoRankedStrategy.of(points)


def found(slower: Mapping[bool, float | None]) -> tuple[Findings, list[MimoCandidate]]:
    """Run it where homogeneous layouts (True) and others take so many times the planned step, None for a failure."""
    tried = strategy()

    def step_s(params: Mapping[str, Value]) -> float | None:
        factor = slower[candidate(dict(params)).is_homogeneous]
        return None if factor is None else factor * PLAN.ranked[int(params["which"])].step_s

    trials = ScriptedTrials(step_s)
    tried.optimize(trials, {"which": CategoricalParameter(list(range(len(ORDER))))}, Direction.MINIMIZE)
    findings = tried.findings()
    assert findings is not None
    return findings, [candidate(dict(params)) for params in trials.points]


class TestMimoRankedStrategy(StrategyContract):
    def make(self) -> MimoRankedStrategy:
        return strategy()

    def space(self) -> dict[str, Parameter]:
        return {"which": CategoricalParameter(list(range(len(ORDER))))}

    def value(self, params: Mapping[str, Value]) -> float:
        return float(params["which"])


def test_the_best_are_tried_and_at_least_two_homogeneous_ones() -> None:
    tried, trials = strategy(), ScriptedTrials(lambda params: 1.0)
    assert tried.why_done() is None and tried.findings() is None
    tried.optimize(trials, {}, Direction.MAXIMIZE)
    chosen = [candidate(dict(params)) for params in trials.points]
    num_alike = sum(at.is_homogeneous for at in chosen)
    assert ORDER[0] in chosen[:2] and len(chosen) >= 3 and num_alike >= 2
    assert len(chosen) <= (tried.max_trials({}) or 0)
    assert mentions(tried.why_done(), len(chosen), len(ORDER), num_alike)


def test_every_tried_layout_is_a_row_with_what_was_expected_of_it() -> None:
    findings, chosen = found({True: 1.0, False: 1.0})
    names = [f"{at.label}, homogeneous" if at.is_homogeneous else at.label for at in chosen]
    assert [row[-1] for row in findings.rows] == names
    assert all(len(row) == len(findings.columns) for row in findings.rows)
    assert findings.rows[0][0] == f"{PLAN.find(chosen[0]).step_s * 1e3:.1f} ms"  # type: ignore[union-attr]


def test_the_gain_is_measured_and_its_causes_are_named() -> None:
    findings, chosen = found({True: 1.5, False: 1.0})
    first, second = findings.lines
    assert re.search(r"\b\d+\.\d\dx", first) and mentions(first, chosen[0].label)
    best = PLAN.find(chosen[0])
    assert best is not None
    assert mentions(second, f"{best.encoder_stage_s * 1e3:.1f} ms", f"{best.language_stage_s * 1e3:.1f} ms")


def test_a_homogeneous_layout_that_stays_the_fastest_is_reported() -> None:
    (line,) = found({True: 0.5, False: 1.0})[0].lines
    assert mentions(line, "homogeneous", "stays")


@pytest.mark.parametrize(
    ("slower", "is_labelled"),
    [
        ({True: None, False: 1.0}, True),
        ({True: None, False: None}, False),
    ],
)
def test_failures_leave_less_to_compare(slower: dict[bool, float | None], is_labelled: bool) -> None:
    findings, chosen = found(slower)
    (line,) = findings.lines
    assert any(mentions(line, at.label) for at in chosen if not at.is_homogeneous) == is_labelled


def test_the_larger_value_is_the_better_where_a_rate_is_measured() -> None:
    trials = [Trial(params={}, outcome=Outcome.OK, value=value, step_s=1 / value) for value in (30.0, 20.0)]
    both = next(each for each in PLAN.ranked if not each.candidate.is_homogeneous), PLAN.homogeneous[0]
    tried = [
        TriedLayout(prediction=at, expected_s=at.step_s, trial=trial) for at, trial in zip(both, trials, strict=True)
    ]
    assert mentions(gain_lines(tried, Direction.MAXIMIZE)[0], "1.50x", "50.0 ms -> 33.3 ms")
    (line,) = gain_lines(tried, Direction.MINIMIZE)
    assert mentions(line, "50.0 ms", "stays")


def test_what_did_not_run_is_not_concluded() -> None:
    trial = Trial(params={}, outcome=Outcome.OK, value=1.0, step_s=1.0)
    alike = TriedLayout(prediction=PLAN.homogeneous[0], expected_s=1.0, trial=trial)
    (line,) = gain_lines([alike], Direction.MINIMIZE)
    assert mentions(line, "of its own", "no") and "stays" not in line


@pytest.mark.parametrize(("error", "is_doubtful"), [(0.1, True), (0.001, False)])
def test_a_difference_within_the_noise_is_said_to_be(error: float, is_doubtful: bool) -> None:
    both = PLAN.homogeneous[0], next(each for each in PLAN.ranked if not each.candidate.is_homogeneous)
    for values in ((1.0, 1.1), (1.1, 1.0)):
        trials = [Trial(params={}, outcome=Outcome.OK, value=value, step_s=value, error=error) for value in values]
        tried = [
            TriedLayout(prediction=at, expected_s=1.0, trial=trial) for at, trial in zip(both, trials, strict=True)
        ]
        assert ("within the noise" in gain_lines(tried, Direction.MINIMIZE)[0]) == is_doubtful


def test_the_run_of_the_own_command_stands_for_its_layout() -> None:
    tried, trials = strategy(), ScriptedTrials(lambda params: 1.0)
    own = ORDER.index(next(at for at in ORDER if not at.is_homogeneous))
    baseline = Trial(params={}, outcome=Outcome.OK, value=1.0, step_s=1.0, number=0, is_baseline=True)
    tried.prepare(TunedJob(own_point=lambda: {"which": own}, baseline=lambda: baseline))
    tried.optimize(trials, {}, Direction.MINIMIZE)
    assert {"which": own} not in trials.points and trials.points
    findings = tried.findings()
    assert findings is not None and findings.rows[0][-1] == ORDER[own].label


def test_a_plan_is_needed() -> None:
    with pytest.raises(UsageError, match="mimo-ranked"):
        MimoRankedStrategy().prepare(TunedJob())
    strategy().prepare(TunedJob())
