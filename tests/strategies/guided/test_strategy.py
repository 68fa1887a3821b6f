from __future__ import annotations

import itertools
import json
import math
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import FAKE_TRAINER
from tests.strategies.guided import worlds
from zenith_tune.calibrate.calibration_file import default_calibration, save_calibration
from zenith_tune.errors import OptionsWithoutEffect, TrialExhausted, UsageError
from zenith_tune.strategies.base import StrategyRegistry, TunedJob
from zenith_tune.strategies.guided.learned import learned_path
from zenith_tune.strategies.guided.strategy import GuidedStrategy
from zenith_tune.study.budget import Training
from zenith_tune.study.parameters import CategoricalParameter, Direction, Parameter, Value
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.testing import ScriptedTrials, StrategyContract

TRIALS = worlds.World({"gemm_efficiency": 0.85, "fast_efficiency": 0.7}, seed=11).trials()
VALUES = {tuple(trial.params.values()): trial for trial in TRIALS.values()}


class WorldTrials(ScriptedTrials):
    """Answer from a world, with step times and the memory that ran out."""

    def __init__(self, budget: int = 1000) -> None:
        super().__init__(lambda params: VALUES[tuple(params.values())].value, budget)
        self.reasons: list[str] = []

    def run(self, params: Mapping[str, Value], why: str = "") -> Trial:
        super().run(params, why)
        self.reasons.append(why)
        return VALUES[tuple(params.values())]


def prepared(**options: object) -> GuidedStrategy:
    strategy = GuidedStrategy(learn=False, **options)  # type: ignore[arg-type]
    strategy.prepare(worlds.job())
    return strategy


class TestGuidedStrategy(StrategyContract):
    def make(self) -> GuidedStrategy:
        return prepared()

    def space(self) -> dict[str, Parameter]:
        return worlds.SPACE


def asked(strategy: GuidedStrategy, budget: int = 1000) -> WorldTrials:
    trials = WorldTrials(budget)
    try:
        strategy.optimize(trials, worlds.SPACE, Direction.MINIMIZE)
    except TrialExhausted:
        assert len(trials.points) == budget
    return trials


def test_it_is_registered() -> None:
    assert StrategyRegistry.get("guided") is GuidedStrategy


def test_every_pick_has_a_reason_of_one_line() -> None:
    trials = asked(prepared())
    assert all(reason and "\n" not in reason and len(reason) < 160 for reason in trials.reasons)
    assert len({*trials.reasons}) == len(trials.reasons)


def test_what_is_expected_before_any_run_may_be_off_by_the_level_of_the_machine(tmp_path: Path) -> None:
    measured = default_calibration("megatron")
    known = replace(measured, time=replace(measured.time, num_own=100))
    errors = []
    for name, calibration in (("published", measured), ("own", known)):
        save_calibration(calibration, tmp_path / name)
        expected = prepared(calibration=str(tmp_path / name)).expected_best()
        errors.append(0.0 if expected is None else expected.error)
    assert errors[0] > (errors[1] ** 2 + 0.1**2) ** 0.5 > errors[1] > 0


def test_the_end_says_why_and_holds_predictions_against_measurements() -> None:
    strategy = prepared()
    trials = asked(strategy)
    assert "8 h" in (strategy.why_done() or ""), "the training that was assumed is stated"
    findings = strategy.findings()
    assert findings is not None and len(findings.rows) == len(trials.points)
    assert all(len(row) == len(findings.columns) for row in findings.rows)
    assert any("best" in line and "compute" in line for line in findings.lines)


def test_the_users_own_command_counts_as_a_trial_of_its_layout() -> None:
    strategy, known = GuidedStrategy(learn=False), TRIALS[0]
    baseline = replace(known, is_baseline=True)
    strategy.prepare(replace(worlds.job(), own_point=lambda: dict(known.params), baseline=lambda: baseline))
    trials = asked(strategy)
    assert dict(known.params) not in trials.points
    findings = strategy.findings()
    assert findings is not None and findings.rows[0][0] == "0"
    alone = asked(prepared())
    assert trials.reasons[0] != alone.reasons[0], "the first pick knows of it"


def test_a_spent_budget_gives_no_reason_of_its_own() -> None:
    strategy = prepared()
    asked(strategy, budget=1)
    assert strategy.why_done() is None
    assert strategy.findings() is not None


def test_side_by_side_no_point_is_tried_twice_and_the_best_is_found() -> None:
    strategy = GuidedStrategy(learn=False)
    strategy.prepare(worlds.job(num_slots=3))
    trials = WorldTrials()
    strategy.optimize(trials, worlds.SPACE, Direction.MINIMIZE)
    points = [tuple(point.values()) for point in trials.points]
    assert len(set(points)) == len(points)
    best = min(trial.step_s for trial in TRIALS.values() if trial.step_s)
    assert min(VALUES[point].step_s or 9e9 for point in points) <= 1.01 * best


def test_a_job_without_a_plan_is_refused_with_what_is_missing() -> None:
    unplanned = "the model is not known: give model="
    with pytest.raises(UsageError, match="guided") as caught:
        GuidedStrategy().prepare(TunedJob(unplanned=unplanned))
    assert unplanned in str(caught.value)


def test_a_calibration_that_is_none_is_refused_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text("{}")
    with pytest.raises(UsageError, match=r"mine\.json"):
        GuidedStrategy(calibration=str(file)).prepare(worlds.job())


# With real trials of the bundled trainer.

CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
Run = Callable[..., subprocess.CompletedProcess[str]]


def study(zenithtune: Run, home: Path, *options: str, name: str = "s") -> list[dict[str, object]]:
    """Run a guided study of the fake trainer and return its trials."""
    folder = home / "model"
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    args = f"n_gpus=8,gbs=16,model={folder},cluster=h100x8,seq=4096,folding=true"
    result = zenithtune(
        *("optimize", "--preset", "megatron", "--output-dir", str(home / "out"), "--study-name", name),
        *("--args", args, "--no-baseline", *options, "--", "python", str(FAKE_TRAINER)),
        env={"ZENITHTUNE_HOME": str(home / "kept")},
    )
    assert result.returncode == 0, result.stderr
    trials: list[dict[str, object]] = json.loads((home / "out" / name / "study.json").read_text())["trials"]
    return trials


def test_a_preset_that_knows_model_and_cluster_recommends_it(zenithtune: Run, tmp_path: Path) -> None:
    trials = study(zenithtune, tmp_path)
    values = [float(str(trial["value"])) for trial in trials if trial["value"] is not None]
    assert max(values) == max(values[:6]), "the best comes early"
    assert all(trial["why"] for trial in trials)


@pytest.mark.slow
def test_the_next_study_begins_with_what_this_one_learned(zenithtune: Run, tmp_path: Path) -> None:
    first = study(zenithtune, tmp_path, name="first")
    assert (tmp_path / "kept" / "learned" / "megatron-h100.json").is_file()
    second = study(zenithtune, tmp_path, name="second")
    assert len(second) <= len(first)
    prior = json.loads((tmp_path / "out" / "second" / "prior.json").read_text())
    assert "this machine" in prior["origin"]
    assert [trial["outcome"] for trial in first].count("oom") > [trial["outcome"] for trial in second].count("oom")


def test_nothing_is_kept_where_that_is_switched_off(zenithtune: Run, tmp_path: Path) -> None:
    study(zenithtune, tmp_path, "--strategy", "guided", "--strategy-args", "learn=false", "--n-trials", "4")
    assert not (tmp_path / "kept").exists()


@pytest.mark.slow
def test_a_study_that_was_cut_short_continues_as_if_it_had_not_been(zenithtune: Run, tmp_path: Path) -> None:
    whole = study(zenithtune, tmp_path / "a", "--n-trials", "7")
    study(zenithtune, tmp_path / "b", "--n-trials", "3")
    resumed = study(zenithtune, tmp_path / "b", "--n-trials", "7", "--resume")
    picks = [[(trial["parameters"], trial["why"]) for trial in trials] for trials in (whole, resumed)]
    assert picks[0] == picks[1]


class SameTrials(WorldTrials):
    """Answer every point with the same time and memory, as a script does that ignores its options."""

    def run(self, params: Mapping[str, Value], why: str = "") -> Trial:
        super().run(params, why)
        outcome, peak = Outcome.OK, 40 * 2**30
        return Trial(params=params, outcome=outcome, value=2.0, step_s=2.0, spread=0.001, peak_memory_bytes=peak)


def test_layouts_that_are_all_alike_against_the_prediction_end_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZENITHTUNE_HOME", str(tmp_path))
    trials, strategy = SameTrials(), GuidedStrategy()
    job = replace(worlds.job(), training=Training(hours=5000))
    strategy.prepare(job)
    with pytest.raises(OptionsWithoutEffect):
        strategy.optimize(trials, worlds.SPACE, Direction.MINIMIZE)
    assert 3 <= len(trials.points) <= 6
    assert job.subject is not None and (path := learned_path(job.subject)) is not None
    assert not path.exists(), "nothing is learned from it"


class OtherAxes(WorldTrials):
    """Answer from a world in which two parameters matter that no layout has, each by itself."""

    FACTORS: Mapping[str, Mapping[Value, float]] = {
        "schedule": {"1f1b": 1.0, "zero-bubble": 0.9, "gpipe": 1.2},
        "kernel": {"plain": 1.0, "fused": 0.95},
    }

    def run(self, params: Mapping[str, Value], why: str = "") -> Trial:
        trial = super().run({name: params[name] for name in worlds.SPACE}, why)
        self.points[-1] = dict(params)
        factor = math.prod(choices[params[name]] for name, choices in self.FACTORS.items())
        step_s = None if trial.step_s is None else trial.step_s * factor
        return replace(trial, params=params, value=step_s, step_s=step_s)


def other_axes(training: Training) -> tuple[GuidedStrategy, OtherAxes]:
    """Return a search where each layout has six points, and its trials."""
    others = [
        dict(zip(OtherAxes.FACTORS, values, strict=True)) for values in itertools.product(*OtherAxes.FACTORS.values())
    ]
    every = [{**point, **other} for point in worlds.points() for other in others]
    strategy, trials = GuidedStrategy(learn=False), OtherAxes()
    strategy.prepare(replace(worlds.job(), points=lambda: every, training=training))
    space = {name: CategoricalParameter([*choices]) for name, choices in OtherAxes.FACTORS.items()}
    strategy.optimize(trials, worlds.SPACE | space, Direction.MINIMIZE)
    return strategy, trials


def test_parameters_that_no_layout_has_are_tried_on_the_layout_that_won() -> None:
    strategy, trials = other_axes(Training())
    plain = asked(prepared())
    first = {name: next(iter(choices)) for name, choices in OtherAxes.FACTORS.items()}
    assert trials.points[: len(plain.points)] == [{**point, **first} for point in plain.points]
    best = min(plain.points, key=lambda point: VALUES[tuple(point.values())].value or math.inf)
    assert trials.points[len(plain.points) :] == [
        {**best, "schedule": "zero-bubble", "kernel": "plain"},
        {**best, "schedule": "gpipe", "kernel": "plain"},
        {**best, "schedule": "zero-bubble", "kernel": "fused"},
    ]
    findings = strategy.findings()
    assert findings is not None and len(findings.rows) == len(trials.points)


def test_what_no_layout_has_is_not_tried_where_a_gain_would_not_pay_for_the_trial() -> None:
    _, trials = other_axes(Training(hours=1.0))
    first = {name: next(iter(choices)) for name, choices in OtherAxes.FACTORS.items()}
    assert all({**point, **first} == point for point in trials.points)
