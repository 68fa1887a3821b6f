from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.study_tools import Asks, Witness, tune
from tests.toy_preset import ToyPreset
from zenith_tune import Direction, RegexEvaluator
from zenith_tune.errors import StudyError, UsageError
from zenith_tune.evaluators.base import Measurement
from zenith_tune.strategies.base import TunedJob
from zenith_tune.study.budget import Budget, MemoryLimit, Training
from zenith_tune.study.parameters import Value


def test_an_existing_study_is_not_touched_without_resume(tmp_path: Path) -> None:
    tune(tmp_path).optimize()
    with pytest.raises(StudyError, match="--resume"):
        tune(tmp_path).optimize()


def test_a_resumed_study_recalls_what_is_finished_and_runs_the_rest(tmp_path: Path) -> None:
    tune(tmp_path).optimize(n_trials=2)
    witness = Witness()
    assert tune(tmp_path, resume=True, listener=witness).optimize() == (3.0, {"x": 3})
    assert [trial.params["x"] for trial in witness.recalled] == [1, 2]
    assert [trial.params["x"] for trial in witness.trials] == [3]


def test_the_budget_of_a_resumed_study_is_the_whole_studys(tmp_path: Path) -> None:
    tune(tmp_path, preset=ToyPreset(range(1, 9))).optimize(n_trials=2)
    witness = Witness()
    tune(tmp_path, preset=ToyPreset(range(1, 9)), resume=True, listener=witness).optimize(n_trials=5)
    assert len(witness.trials) == 3


LIMITS = Budget(training=Training(hours=100.0), gpu_hours=50.0, max_hours=20.0, price=2.5)


def test_a_resumed_study_keeps_the_limits_that_it_was_begun_with(tmp_path: Path) -> None:
    tune(tmp_path, train_hours=100.0, gpu_hours=50.0, max_hours=20.0, price=2.5, headroom=0.1).optimize(n_trials=1)
    prepared: list[TunedJob] = []

    class Hears(Asks):
        def prepare(self, job: TunedJob) -> None:
            prepared.append(job)

    tuner = tune(tmp_path, resume=True, strategy=Hears(2))
    tuner.optimize()
    assert tuner.config.budget == LIMITS and tuner.config.memory == MemoryLimit(headroom=0.1)
    assert prepared[-1].training.hours == 100.0
    tune(tmp_path, resume=True, price=4.0, max_memory=7e10).optimize()
    tuner = tune(tmp_path, resume=True)
    tuner.optimize()
    assert tuner.config.budget == replace(LIMITS, price=4.0)
    assert tuner.config.memory == MemoryLimit(max_bytes=7e10)


def test_a_memory_limit_that_is_kept_decides_what_is_best(tmp_path: Path) -> None:
    class Measures(RegexEvaluator):
        def measure(self, stdout: str, metadata: Mapping[str, Any]) -> Measurement:
            found = super().measure(stdout, metadata)
            return replace(found, peak_memory_bytes=round(found.value * 2**30))

    def resumed(**options: Any) -> tuple[float | None, Mapping[str, Value] | None]:
        evaluator = Measures(r"value: (\S+)", direction=Direction.MAXIMIZE)
        return tune(tmp_path, evaluator=evaluator, resume=True, **options).optimize()

    assert resumed(max_memory=2 * 2**30)[0] == 2.0
    assert resumed()[0] == 2.0
    assert resumed(max_memory=9 * 2**30)[0] == 3.0


@pytest.mark.parametrize(
    "budget_of", [lambda hours: {"gpu_hours": hours}, lambda hours: {"max_hours": hours}], ids=["GPU", "all"]
)
def test_a_budget_that_is_spent_stays_spent_until_a_larger_one_is_given(
    tmp_path: Path, budget_of: Callable[[float], dict[str, float]]
) -> None:
    preset = ToyPreset(range(9))
    command = f"sh -c 'if [ {{x}} = 3 ] && [ ! -e {tmp_path}/go ]; then sleep 600; fi; echo value: {{x}}'"
    first, again, more = Witness(), Witness(), Witness()
    tune(tmp_path, command, preset, **budget_of(8.0 / 3600), listener=first).optimize()
    ran = [trial for trial in first.trials if trial.ok]
    assert 1 <= len(ran) <= 3
    (tmp_path / "go").touch()
    tune(tmp_path, command, preset, resume=True, listener=again).optimize()
    assert again.trials == []
    tune(tmp_path, command, preset, resume=True, **budget_of(1.0), listener=more).optimize()
    assert len(more.trials) == 9 - len(ran)


def test_a_trial_that_the_budget_would_cut_off_is_not_started(tmp_path: Path) -> None:
    witness = Witness()
    command = "sh -c 'sleep 3; echo value: {x}'"
    tune(tmp_path, command, ToyPreset(range(9)), gpu_hours=5.3 / 3600, listener=witness).optimize()
    assert [str(trial.outcome) for trial in witness.trials] == ["ok"]


def test_the_estimate_is_no_longer_than_the_budget(tmp_path: Path) -> None:
    witness = Witness()

    class OwnRuns(ToyPreset):
        def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
            return f"echo value: {params['x']}"

    command = "sh -c 'sleep 1; echo value: 0'"
    tune(tmp_path, command, OwnRuns(range(9)), max_hours=4 / 3600, listener=witness).optimize()
    (estimate,) = [note for note in witness.notes if note.startswith("about")]
    assert "0.00111111 hours" in estimate


def test_a_second_call_continues_where_the_first_stopped(tmp_path: Path) -> None:
    tuner = tune(tmp_path, preset=ToyPreset(range(1, 9)))
    assert tuner.optimize(n_trials=2) == (2.0, {"x": 2})
    assert tuner.optimize(n_trials=4) == (4.0, {"x": 4})


def test_a_resumed_random_study_ends_like_an_uninterrupted_one(tmp_path: Path) -> None:
    preset = ToyPreset(range(100))
    whole, parts = Witness(), Witness()
    tune(tmp_path / "a", preset=preset, strategy="random", listener=whole).optimize(n_trials=8)
    for n_trials in (3, 8):
        tuner = tune(tmp_path / "b", preset=preset, strategy="random", resume=True, listener=parts)
        tuner.optimize(n_trials=n_trials)
    assert [trial.params for trial in parts.trials] == [trial.params for trial in whole.trials]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"command": "sh -c 'echo value: {x}0'"}, "command"),
        ({"evaluator": RegexEvaluator(r"value: (\S+)")}, "evaluator"),
    ],
)
def test_a_study_of_another_kind_is_not_resumed(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    tune(tmp_path).optimize()
    with pytest.raises(StudyError, match=f"with {named} "):
        tune(tmp_path, resume=True, **change).optimize()


def test_resuming_a_study_that_never_began_begins_it_and_says_so(tmp_path: Path) -> None:
    witness = Witness()
    assert tune(tmp_path, resume=True, listener=witness).optimize() == (3.0, {"x": 3})
    assert [note for note in witness.notes if "'s'" in note]


def test_a_retried_failure_is_replaced_by_its_success(tmp_path: Path) -> None:
    command = f"sh -c '[ -e {tmp_path}/go ] && echo value: {{x}}'"
    tune(tmp_path, command, ToyPreset([1, 2])).optimize()
    (tmp_path / "go").touch()
    tune(tmp_path, command, ToyPreset([1, 2]), resume=True, retry_failed=True).optimize()
    witness = Witness()
    tune(tmp_path, command, ToyPreset([1, 2]), resume=True, listener=witness).optimize()
    assert witness.end is not None and [t.outcome for t in witness.end.study.trials] == ["ok", "ok"]


def test_retrying_goes_with_resuming(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--resume"):
        tune(tmp_path, retry_failed=True)


def test_a_study_is_not_resumed_with_other_choices(tmp_path: Path) -> None:
    tune(tmp_path, preset=ToyPreset([1, 2])).optimize()
    with pytest.raises(StudyError, match="another search space"):
        tune(tmp_path, preset=ToyPreset([1, 2, 3]), resume=True).optimize()


def test_an_interrupted_baseline_runs_again(tmp_path: Path) -> None:
    class Plain(ToyPreset):
        def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
            return "echo value: 5"

    class StopsAtOnce(Witness):
        def trial_started(self, number: int, label: str, log_path: Path, limit_s: float | None, why: str = "") -> None:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        tune(tmp_path, "sh -c 'sleep 1; echo value: 1'", Plain([1]), listener=StopsAtOnce()).optimize()
    witness = Witness()
    tune(tmp_path, "sh -c 'sleep 1; echo value: 1'", Plain([1]), resume=True, listener=witness).optimize()
    assert [trial.is_baseline for trial in witness.trials] == [True, False]


@pytest.mark.parametrize("extra", [{"a": float("nan")}, {"a": object()}, {"outcome": "odd", "cause": "none"}])
def test_whatever_an_evaluator_adds_the_study_can_be_resumed(tmp_path: Path, extra: dict[str, Any]) -> None:
    class Adds(RegexEvaluator):
        def measure(self, stdout: str, metadata: Mapping[str, Any]) -> Measurement:
            return Measurement(value=self.evaluate(stdout, metadata), extra=extra)

    preset, evaluator, witness = ToyPreset([1, 2]), Adds(r"value: (\S+)"), Witness()
    tune(tmp_path, preset=preset, evaluator=evaluator).optimize()
    tune(tmp_path, preset=preset, evaluator=evaluator, resume=True, listener=witness).optimize()
    assert len(witness.recalled) == 2


def test_failed_trials_are_kept_on_resume_and_run_again_when_asked(tmp_path: Path) -> None:
    command = f"sh -c '[ -e {tmp_path}/go ] && echo value: {{x}}'"
    assert tune(tmp_path, command, ToyPreset([1, 2])).optimize() == (None, None)
    (tmp_path / "go").touch()
    assert tune(tmp_path, command, ToyPreset([1, 2]), resume=True).optimize() == (None, None)
    assert tune(tmp_path, command, ToyPreset([1, 2]), resume=True, retry_failed=True).optimize() == (2.0, {"x": 2})
