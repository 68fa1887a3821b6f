from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.study_tools import Asks, Witness, tune
from tests.toy_preset import ToyPreset
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.failures.failures import FailureKind
from zenith_tune.study.parameters import Value
from zenith_tune.study.trial import YOUR_COMMAND, Outcome
from zenith_tune.tuning import watch
from zenith_tune.tuning.watch import (
    FIRST_OUTPUT_S,
    FIRST_RUN_S,
    FIRST_STEP_S,
    LEAST_SILENCE_S,
    SILENCE_MARGIN,
    SilenceLimit,
    SilenceWatch,
)


class Given(ToyPreset):
    """Run another program than the user's own command in every trial."""

    def __init__(self, trial_command: str) -> None:
        super().__init__()
        self.text_of_trial = trial_command

    def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
        return self.text_of_trial.replace("{x}", str(params["x"]))


def test_the_limit_is_stated_for_the_first_run_and_learned_from_those_that_went_well() -> None:
    limit = SilenceLimit()
    assert limit.seconds == FIRST_RUN_S
    assert SilenceLimit(fixed_s=2 * FIRST_RUN_S).seconds == 2 * FIRST_RUN_S
    limit.observe(1.0)
    assert limit.seconds == LEAST_SILENCE_S
    limit.observe(200.0)
    limit.observe(100.0)
    assert limit.seconds == SILENCE_MARGIN * 200.0


def test_a_log_that_grows_is_not_silent_and_one_that_does_not_is_spoken_of_before_it_is_ended(tmp_path: Path) -> None:
    reported: list[str] = []
    watch, log = SilenceWatch(SilenceLimit(), reported.append), tmp_path / "log.txt"
    assert watch.look(log, 1e9) is None, "a job that waits for its machine has no log"
    for now_s in range(0, 4000, 100):
        log.write_text("x" * (now_s + 1))
        assert watch.look(log, now_s) is None
    assert not reported
    assert [watch.look(log, 3900 + later_s) for later_s in range(100, 1800, 100)] == [None] * 17
    assert 3 <= len(reported) <= 4
    assert watch.look(log, 3900 + FIRST_RUN_S) is not None


def test_a_log_that_stays_empty_is_spoken_of_within_a_minute(tmp_path: Path) -> None:
    reported: list[str] = []
    watch, log = SilenceWatch(SilenceLimit(), reported.append), tmp_path / "log.txt"
    log.touch()
    for now_s in range(0, 200, 10):
        assert watch.look(log, now_s) is None
        assert len(reported) == (now_s >= FIRST_OUTPUT_S)


def test_a_first_step_that_never_ends_is_spoken_of_once_and_named_where_the_trial_is_ended(tmp_path: Path) -> None:
    reported: list[str] = []
    watch, log = SilenceWatch(SilenceLimit(), reported.append), tmp_path / "log.txt"
    for ran_s in (1.0, FIRST_STEP_S, 2 * FIRST_STEP_S):
        watch.see_steps(ran_s, any_ended=False)
        assert len(reported) == (ran_s >= FIRST_STEP_S)
    log.write_text("loading")
    watch.look(log, 0)
    assert "first step" in (watch.look(log, FIRST_RUN_S) or "")
    watch.see_steps(FIRST_RUN_S, any_ended=True)
    assert "first step" not in (watch.look(log, FIRST_RUN_S) or "first step")


def test_a_trial_that_prints_but_never_ends_a_step_is_spoken_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "FIRST_STEP_S", 1.5)
    witness, command = Witness(), "sh -c 'for i in 1 2 3 4 5 6; do echo loading $i; sleep 0.5; done; echo value: 5'"
    tune(tmp_path, command, Given("echo value: {x}"), strategy=Asks(1), listener=witness).optimize()
    assert [line.startswith(f"{YOUR_COMMAND}:") for line in witness.notes if "no step" in line] == [True]


def test_a_trial_that_hangs_is_ended_with_that_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LEAST_SILENCE_S", 1.0)
    monkeypatch.setattr(watch, "SILENCE_MARGIN", 1.0)
    witness = Witness()
    preset = Given("sh -c 'echo waiting; sleep 60 {x}'")
    tune(tmp_path, "echo value: 5", preset, strategy=Asks(1), listener=witness).optimize()
    [trial] = [trial for trial in witness.trials if not trial.is_baseline]
    assert (trial.outcome, trial.failure) == (Outcome.TIMEOUT, FailureKind.SILENT)
    assert trial.duration_s is not None and trial.duration_s < 30
    assert any(line.startswith(f"trial {trial.number}") for line in witness.notes)


def test_a_first_run_that_hangs_is_ended_by_the_stated_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "FIRST_RUN_S", 2.0)
    witness, command = Witness(), "sh -c 'echo waiting; sleep 60'"
    tune(tmp_path, command, Given("echo value: {x}"), strategy=Asks(1), listener=witness).optimize()
    [own] = witness.trials
    assert own.is_baseline and (own.outcome, own.failure) == (Outcome.TIMEOUT, FailureKind.SILENT)
    assert own.duration_s is not None and 2.0 <= own.duration_s < 30
    assert any(line.startswith(f"{YOUR_COMMAND}:") for line in witness.notes), "it is spoken of while it waits"


@pytest.mark.timeout(900)
def test_later_trials_wait_by_what_those_before_them_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "FIRST_RUN_S", 60.0)
    monkeypatch.setattr(watch, "LEAST_SILENCE_S", 0.5)
    witness = Witness()
    # Five times the silence of the first: enough for the second, and not for the third.
    preset, command = (
        Given("sh -c 'echo start; sleep {x}; echo value: {x}'"),
        "sh -c 'echo start; sleep 3; echo value: 1'",
    )
    preset._choices = [4, 60]  # seconds
    tune(tmp_path, command, preset, strategy=Asks(4, 60), listener=witness).optimize()
    assert [trial.outcome for trial in witness.trials] == [Outcome.OK, Outcome.OK, Outcome.TIMEOUT]
    assert witness.trials[-1].failure == FailureKind.SILENT and (witness.trials[-1].duration_s or 99) < 40


def test_an_own_command_that_fails_stops_the_study_and_shows_its_traceback(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("for i in range(50): print('line', i)\nraise KeyError('no such dataset')")
    witness, strategy = Witness(), Asks(1, 2)
    found = tune(tmp_path, f"{sys.executable} {script}", Given("echo value: {x}"), strategy=strategy, listener=witness)
    assert found.optimize() == (None, None)
    assert strategy.answers == []
    assert witness.end is not None and "no such dataset" in witness.end.why
    assert any("Traceback" in line for line in witness.notes) and not any("line 10" in line for line in witness.notes)


@pytest.mark.parametrize("cause", ["torch.OutOfMemoryError: CUDA out of memory.", ""])
def test_an_own_command_that_lacks_memory_or_time_does_not_stop_it(tmp_path: Path, cause: str) -> None:

    strategy = Asks(1)
    command = f"sh -c 'echo {cause}; exit 1'" if cause else "sleep 60"
    preset = Given("echo value: {x}")
    assert tune(tmp_path, command, preset, strategy=strategy, timeout=2.0).optimize() == (1.0, {"x": 1})


def test_without_a_baseline_the_study_goes_on_as_it_did(tmp_path: Path) -> None:
    found = tune(tmp_path, "false", Given("echo value: {x}"), strategy=Asks(1), baseline=False)
    assert found.optimize() == (1.0, {"x": 1})


def test_the_same_broken_network_stops_the_study_after_three_trials(tmp_path: Path) -> None:
    strategy = Asks(1, 2, 3, 4)
    error = "rank {x}: NCCL error in: ProcessGroupNCCL.cpp:21{x}, unhandled system error"
    preset = ToyPreset([1, 2, 3, 4])
    tune(tmp_path, f"sh -c 'echo {error}; exit 1'", preset, strategy=strategy).optimize()
    assert len(strategy.answers) == 2, "the third ends the study"


@pytest.mark.parametrize("command", ["sbatch job.sh", "/usr/bin/sbatch --nodes 2 job.sh"])
def test_sbatch_is_refused_with_a_pointer_to_slurm(tmp_path: Path, command: str) -> None:
    with pytest.raises(UsageError) as refused:
        tune(tmp_path, command, Given("echo {x}"))
    assert "--slurm" in refused.value.hint
