"""Whole studies whose trials are ended once their value is known, with real processes."""

from __future__ import annotations

import csv
import json
import random
import signal
import sys
from pathlib import Path

import pytest

from tests.cli.test_cli import Run
from tests.conftest import FAKE_TRAINER
from tests.evaluators.iteration_logs import log_of
from tests.started_processes import marked_processes, wait_until
from tests.study_tools import Asks, Witness, tune
from tests.toy_preset import ToyPreset
from tests.tuning.test_interruption import start
from zenith_tune.evaluators.regex import RegexEvaluator
from zenith_tune.presets.megatron.evaluator import MegatronEvaluator

TALK = """
import signal, sys, time
def leave(*_):
    print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.", flush=True)
    sys.exit(1)
signal.signal(signal.SIGTERM, leave)
for line in open(sys.argv[1]):
    print(line, end="", flush=True)
    time.sleep(float(sys.argv[3]))
print(sys.argv[2], flush=True)
time.sleep(1000)
"""


def study_of(
    tmp_path: Path,
    logs: dict[int, str],
    last_words: str = "still training",
    *,
    extra: str = "",
    line_s: float = 0.01,
    **options: object,
) -> Witness:
    """Run a study whose trial x prints logs[x] and then hangs."""
    (tmp_path / "talk.py").write_text(TALK)
    for x, log in logs.items():
        (tmp_path / f"lines-{x}").write_text(log)
    witness = Witness()
    command = f"{sys.executable} {tmp_path}/talk.py {tmp_path}/lines-{{x}} '{last_words}' {line_s} {extra}"
    preset, evaluator = ToyPreset(list(logs)), MegatronEvaluator("step_time")
    tune(tmp_path, command, preset, evaluator=evaluator, listener=witness, **options).optimize()
    assert marked_processes(tmp_path) == []
    return witness


def steady(step_s: float, num: int = 60, noise: float = 0.004) -> str:
    rng = random.Random(0)
    return log_of([3 * step_s, *(step_s * (1 + noise * rng.gauss(0, 1)) for _ in range(num))])


def test_a_known_trial_is_ended_with_its_value_and_nothing_is_left_running(tmp_path: Path) -> None:
    (trial,) = study_of(tmp_path, {1: steady(0.4)}).trials
    assert trial.outcome == "ok" and trial.value == pytest.approx(0.4, rel=0.005)
    assert trial.early is not None and trial.early.startswith("known within ")
    assert trial.duration_s is not None and trial.duration_s < 100


def test_what_a_trial_prints_while_it_is_ended_does_not_count(tmp_path: Path) -> None:
    (trial,) = study_of(tmp_path, {1: steady(0.4)}).trials
    assert "OutOfMemoryError" in (trial.folder or tmp_path).joinpath("log.txt").read_text()
    assert trial.outcome == "ok"


def test_a_secret_in_the_log_of_a_trial_that_was_ended_early_is_masked(tmp_path: Path) -> None:
    # Printed first: on a busy machine the trial is ended before its last words.
    log = "hf_abcdefgh12345678\n" + steady(0.4)
    (trial,) = study_of(tmp_path, {1: log}, extra="--hf-token hf_abcdefgh12345678").trials
    log = (trial.folder or tmp_path).joinpath("log.txt").read_text()
    assert trial.early is not None
    assert "hf_abcdefgh" not in log and "***" in log


def test_a_trial_behind_the_best_is_ended_and_keeps_its_value(tmp_path: Path) -> None:
    rough = steady(0.8, num=60, noise=0.06)
    witness = study_of(tmp_path, {1: steady(0.4), 2: rough}, strategy=Asks(1, 2))
    best, behind = witness.trials
    assert behind.early is not None and behind.early.startswith("behind ")
    assert behind.outcome == "ok" and behind.value == pytest.approx(0.8, rel=0.1)
    assert witness.end is not None and witness.end.study.best == best


def test_later_trials_are_known_sooner_by_what_the_first_one_showed(tmp_path: Path) -> None:
    logs = {x: log_of([1.2, *(0.4 * (1 + 0.003 * random.Random(x).gauss(0, 1)) for _ in range(60))]) for x in (1, 2, 3)}
    witness = study_of(tmp_path, logs, strategy=Asks(1, 2, 3), line_s=0.4)
    first, *later = (trial.num_samples or 60 for trial in witness.trials)
    assert max(later) <= 10 < 20 <= first <= 24


def test_trials_wait_longer_in_a_study_whose_first_run_drifted(tmp_path: Path) -> None:
    quiet = log_of([1.2, *(0.4 * (1 + 0.003 * random.Random(2).gauss(0, 1)) for _ in range(60))])
    drifted = log_of([1.2, *(0.4 * (1.03 if 8 < index < 20 else 1.0) for index in range(40))])
    witness = Witness()
    for x, log in {1: drifted, 2: quiet}.items():
        (tmp_path / f"lines-{x}").write_text(log)
    (tmp_path / "talk.py").write_text(TALK.replace("time.sleep(1000)", "sys.exit(0)"))
    command = f"{sys.executable} {tmp_path}/talk.py {tmp_path}/lines-{{x}} done 0.1"
    evaluator = MegatronEvaluator("step_time")
    tune(tmp_path, command, ToyPreset([1, 2]), evaluator=evaluator, strategy=Asks(1, 2), listener=witness).optimize()
    first, later = witness.trials
    assert (first.drift or 0) > 0.02
    assert later.early is not None and (later.num_samples or 0) >= 20


def test_a_regex_ends_trials_early_too(tmp_path: Path) -> None:
    log = "".join(f"step time: {2 + 0.001 * (number % 3)}\n" for number in range(60))
    (tmp_path / "talk.py").write_text(TALK)
    (tmp_path / "lines").write_text(log)
    witness = Witness()
    command = f"{sys.executable} {tmp_path}/talk.py {tmp_path}/lines 'still training' 0.01 {{x}}"
    evaluator = RegexEvaluator(r"step time: (\S+)", "median")
    tune(tmp_path, command, ToyPreset([1]), evaluator=evaluator, listener=witness).optimize()
    (trial,) = witness.trials
    assert trial.early is not None and trial.early.startswith("known within ")
    assert trial.value == pytest.approx(2.0, rel=0.01) and trial.spread is not None


class Verbose(ToyPreset):
    """Have trials print more than the command itself asks for."""

    def trial_command(self, command: str) -> str:
        return f"{command} --verbose"


def test_what_makes_a_trial_print_is_in_its_command_file_alone(tmp_path: Path) -> None:
    witness = Witness()
    command = f"{sys.executable} -c \"import sys; print('VALUE=1', sys.argv)\" {{x}}"
    evaluator = RegexEvaluator(r"VALUE=(\S+)")
    tune(tmp_path, command, Verbose([1]), evaluator=evaluator, listener=witness).optimize()
    (trial,) = witness.trials
    assert trial.folder is not None and "--verbose" not in trial.command
    assert "'--verbose'" in (trial.folder / "log.txt").read_text()
    assert (trial.folder / "command.sh").read_text().rstrip().endswith("--verbose")
    assert "--verbose" not in (tmp_path / "out" / "s" / "best_command.sh").read_text()


def test_every_repeat_is_ended_early(tmp_path: Path) -> None:
    (trial,) = study_of(tmp_path, {1: steady(0.4)}, repeats=2).trials
    assert trial.num_runs == 2 and trial.early is not None
    assert trial.value == pytest.approx(0.4, rel=0.005)


def test_why_it_was_ended_is_in_the_record_and_in_every_file(tmp_path: Path) -> None:
    (trial,) = study_of(tmp_path, {1: steady(0.4)}).trials
    folder = tmp_path / "out" / "s"
    assert trial.early is not None
    with (folder / "trials.csv").open() as file:
        assert [row["early"] for row in csv.DictReader(file)] == [trial.early]
    assert json.loads((folder / "study.json").read_text())["trials"][0]["early"] == trial.early
    assert json.loads((folder / "trials" / "0000" / "trial.json").read_text())["early"] == trial.early
    again = study_of(tmp_path, {1: steady(0.4)}, resume=True)
    assert again.trials == [] and [recalled.early for recalled in again.recalled] == [trial.early]


def test_a_known_trial_that_had_run_out_of_memory_is_no_success(tmp_path: Path) -> None:
    words = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    # The steady lines come so quickly that the last words are there before the first look.
    (trial,) = study_of(tmp_path, {1: steady(0.4, num=30)}, words).trials
    assert (trial.outcome, trial.value, trial.early) == ("oom", None, None)


def run_fake_trainer(zenithtune: Run, *options: str, num_iterations: int = 1000) -> list[dict[str, object]]:
    trainer = [sys.executable, str(FAKE_TRAINER), "--train-iters", str(num_iterations), "--noise", "0.01"]
    chosen = ["--preset", "megatron", "--args", "n_gpus=8,gbs=16", "--n-trials", "1", "--no-baseline", "--json"]
    result = zenithtune("optimize", *chosen, *options, "--", *trainer, "--iteration-seconds", "0.015")
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_the_command_line_ends_trials_early_and_says_so(zenithtune: Run) -> None:
    events = run_fake_trainer(zenithtune)
    (finished,) = [event for event in events if event["event"] == "trial_finished"]
    (started,) = [event for event in events if event["event"] == "study_started"]
    assert str(finished["early"]).startswith("known within ")
    assert "costs more than it is worth" in str(started["notes"])


@pytest.mark.slow
def test_without_early_stop_a_trial_runs_to_its_end(zenithtune: Run) -> None:
    events = run_fake_trainer(zenithtune, "--no-early-stop", num_iterations=110)
    (finished,) = [event for event in events if event["event"] == "trial_finished"]
    (started,) = [event for event in events if event["event"] == "study_started"]
    assert finished["early"] is None
    assert finished["num_samples"] == 109
    assert "than it is worth" not in str(started["notes"])


def test_without_early_stop_in_python_a_trial_runs_to_its_end(tmp_path: Path) -> None:
    witness = Witness()
    command = f"{sys.executable} {FAKE_TRAINER} --train-iters 60 --iteration-seconds 0.025 --seed {{x}}"
    tuner = tune(tmp_path, command, ToyPreset([1]), evaluator=MegatronEvaluator(), listener=witness, early_stop=False)
    tuner.optimize()
    assert [(trial.early, trial.num_samples) for trial in witness.trials] == [(None, 59)]


def test_ctrl_c_ends_a_trial_that_is_being_watched(tmp_path: Path) -> None:
    (tmp_path / "talk.py").write_text(TALK)
    (tmp_path / "lines").write_text(steady(0.4, num=120, noise=0.3))
    command = f"sh -c '{sys.executable} {tmp_path}/talk.py {tmp_path}/lines on 0.01 {{x}} || touch {tmp_path}/left'"
    tuner = start(tmp_path, command, "--evaluator", "megatron", n=2)
    # Past the first look, which comes after a second.
    wait_until(lambda: any("120/" in log.read_text() for log in tmp_path.glob("zenithtune-out/s/trials/*/log.txt")))
    tuner.send_signal(signal.SIGINT)
    stdout, stderr = tuner.communicate(timeout=500)
    assert tuner.returncode == 130, stderr
    assert "SIGINT" in stdout
    assert marked_processes(tmp_path) == []
