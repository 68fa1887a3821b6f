"""Trials, plug-ins and surroundings that do what they should not: the study goes on, or stops with one clear line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import toy_plugin
from tests.started_processes import marked_processes, start_process, wait_until
from tests.study_tools import Asks, Witness, tune
from tests.toy_preset import ToyPreset
from tests.tuning.test_interruption import start
from tests.warm_process import run_command
from zenith_tune import Outcome, PresetTuner, TuningEvaluator
from zenith_tune.errors import StudyError, TrialExhausted, UsageError
from zenith_tune.runners.local.runner import LocalRunner
from zenith_tune.strategies.base import EvalFunction
from zenith_tune.study.parameters import Value

FOLDER = "$ZENITHTUNE_TRIAL_FOLDER"


@pytest.mark.parametrize(
    "deed",
    [
        f"rm -rf {FOLDER}",
        f"rm -rf {FOLDER}; touch {FOLDER}",
        f"rm -f {FOLDER}/log.txt",
        f"rm -f {FOLDER}/log.txt; mkdir {FOLDER}/log.txt",
        f"rm -f {FOLDER}/log.txt; mkfifo {FOLDER}/log.txt",
        f"ln -sf /dev/zero {FOLDER}/log.txt",
        f"mkdir {FOLDER}/.trial.json.tmp",
        f"rm -f {FOLDER}/trial.json; mkdir {FOLDER}/trial.json",
        f"rm -rf {FOLDER}/../..",
        f"rm -f {FOLDER}/process {FOLDER}/exit_code",
    ],
)
def test_a_trial_that_disturbs_its_folder_does_not_end_the_study(tmp_path: Path, deed: str) -> None:
    witness = Witness()
    # A secret in the command makes the tuner open the log for masking, too.
    command = f"bash -c 'echo value: {{x}}; [ {{x}} = 2 ] && {{ {deed}; }}; true' --hf-token hf_abcdefghijklmnop1234"
    value, _ = tune(tmp_path, command, listener=witness).optimize()
    assert value == 3.0
    assert len(witness.trials) == 3


def test_masking_never_follows_a_link_out_of_the_trials_folder(tmp_path: Path) -> None:
    secret = "hf_abcdefghijklmnop1234"
    precious = tmp_path / "precious"
    precious.write_text(f"my {secret}")
    tune(tmp_path, f"bash -c 'ln -sf {precious} {FOLDER}/log.txt' {{x}} --hf-token {secret}", ToyPreset([1])).optimize()
    assert precious.read_text() == f"my {secret}"


@pytest.mark.parametrize("name", ["o space", "o;touch PWNED;", "o$(touch PWNED)", "o`touch PWNED`", "o'quote"])
@pytest.mark.parametrize("form", ["{trial_folder}/f", "'{trial_folder}/f'", '"{trial_folder}/f"', "x={trial_folder}"])
def test_the_trial_folder_is_one_word_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, form: str
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "show.py"
    script.write_text("import sys; print('value:', len(sys.argv)); print(sys.argv[2])")
    command = f"{sys.executable} {script} {{x}} {form}"
    try:
        tuner = PresetTuner(command, ToyPreset([1]), output_dir=tmp_path / name, study_name="s", listener=Witness())
    except UsageError as error:
        assert "{trial_folder}" in str(error)
    else:
        assert tuner.optimize() == (3.0, {"x": 1})
        log = (tmp_path / name / "s/trials/0000/log.txt").read_text().splitlines()
        assert log[1].removeprefix("x=").removesuffix("/f") == str(tmp_path / name / "s/trials/0000")
    assert not (tmp_path / "PWNED").exists()


class Faulty(TuningEvaluator):
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def evaluate(self, stdout: str, metadata: Mapping[str, Any]) -> float:
        if isinstance(self.answer, Exception):
            raise self.answer
        value: float = self.answer
        return value


@pytest.mark.parametrize(
    "answer",
    [None, "many", 1j, 10**400, float("nan"), float("inf"), KeyError("x"), ZeroDivisionError(), OverflowError()],
)
def test_an_evaluators_fault_is_a_failed_trial(tmp_path: Path, answer: Any) -> None:
    witness = Witness()
    tune(tmp_path, "echo {x}", ToyPreset([1, 2]), evaluator=Faulty(answer), listener=witness).optimize()
    assert [trial.outcome for trial in witness.trials] == [Outcome.ERROR, Outcome.ERROR]
    assert witness.trials[0].cause


def test_giant_numbers_make_no_invalid_json(tmp_path: Path) -> None:
    class Grows(ToyPreset):
        def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
            return "echo value: 1.7e308"

    witness = Witness()
    tune(tmp_path, "echo value: 5e-324", Grows([1]), listener=witness).optimize()
    assert witness.end is not None and witness.end.study.gain is None
    assert "Infinity" not in (tmp_path / "out/s/study.json").read_text()


def test_a_process_that_shed_its_mark_and_its_session_is_ended_too(tmp_path: Path) -> None:
    command = "bash -c 'env -i setsid sleep 987 & (env -i setsid sleep 986 &) ; sleep 0.1; echo value: {x}'"
    tuner = start(tmp_path, command, n=2)
    tuner.communicate(timeout=500)
    assert tuner.returncode == 0
    left = subprocess.run(["pgrep", "-f", "^sleep 98[67]$"], capture_output=True, text=True).stdout.split()
    assert left == []


def test_sigquit_is_an_orderly_stop(tmp_path: Path) -> None:
    tuner = start(tmp_path, f"sh -c 'touch {tmp_path}/on; sleep 1000; echo {{x}}'")
    wait_until((tmp_path / "on").exists)
    tuner.send_signal(signal.SIGQUIT)
    tuner.communicate(timeout=500)
    assert tuner.returncode == 131
    assert marked_processes(tmp_path) == []


@pytest.mark.slow
def test_a_pattern_that_never_ends_is_stopped_by_the_second_signal(tmp_path: Path) -> None:
    command = f"sh -c 'touch {tmp_path}/on; echo {'a' * 60}!; echo {{x}}'"
    tuner = start(tmp_path, command, "--objective", r"(?:a|aa)+b|v: (\d)")
    wait_until((tmp_path / "on").exists)
    time.sleep(1.5)
    assert tuner.poll() is None, "the pattern ended: the test shows nothing"
    tuner.send_signal(signal.SIGINT)
    time.sleep(0.3)
    tuner.send_signal(signal.SIGINT)
    tuner.communicate(timeout=500)
    assert tuner.returncode == 130


@pytest.mark.slow
def test_a_strategy_that_meets_nothing_but_pruned_points_can_be_stopped(tmp_path: Path) -> None:
    arguments = ["--preset", "megatron", "--strategy", "grid", "--args", "n_gpus=1536,gbs=1", "--no-baseline"]
    command = [
        sys.executable,
        "-m",
        "zenith_tune.cli.main",
        "optimize",
        "-v",
        *arguments,
        "--",
        sys.executable,
        "train.py",
    ]
    tuner = start_process(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until(lambda: bool(list(tmp_path.glob("zenithtune-out/studies.db"))))
    time.sleep(2)
    tuner.send_signal(signal.SIGTERM)
    tuner.communicate(timeout=500)
    assert tuner.returncode == 143


@pytest.mark.parametrize(
    "db",
    [":memory:", "sqlite://", "/dev/null", "a?x=1.db", "a%20.db", "{a}.db", "~nobody-at-all/x.db", "postgresql://h/x"],
)
def test_a_database_that_cannot_keep_a_study_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, db: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        tune(tmp_path, db_path=db).optimize()


def test_a_database_under_another_name_is_the_same_study(tmp_path: Path) -> None:
    (tmp_path / "alias.db").symlink_to(tmp_path / "real.db")
    errors: list[Exception] = []

    class Meanwhile(Asks):
        def optimize(self, eval_fn: EvalFunction, search_space: Any, direction: Any) -> None:
            for db in (tmp_path / "alias.db", f"sqlite+pysqlite:///{tmp_path}/real.db", tmp_path / "." / "real.db"):
                try:
                    tune(tmp_path, db_path=db, resume=True).optimize()
                except StudyError as error:
                    errors.append(error)
            super().optimize(eval_fn, search_space, direction)

    tune(tmp_path, db_path=tmp_path / "real.db", strategy=Meanwhile(1)).optimize()
    assert len(errors) == 3
    assert all(f"process {os.getpid()}" in str(error) for error in errors)


def test_tuners_that_start_together_share_a_new_database(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def run(name: str) -> None:
        try:
            tune(tmp_path, study_name=name).optimize()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(f"s{index}",)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "text"), [("exit_code", "²"), ("exit_code", "99999999999"), ("process", "garbage\n(x")]
)
def test_odd_files_of_a_killed_tuners_trial_do_not_block_resuming(tmp_path: Path, file: str, text: str) -> None:
    toy_plugin.install(tmp_path / "plugins")
    command = f"sh -c 'touch {tmp_path}/on; [ -e {tmp_path}/go ] || sleep 1000; echo value: {{x}}'"
    tuner = start(tmp_path, command, n=1)
    wait_until((tmp_path / "on").exists)
    tuner.kill()
    tuner.communicate()
    (tmp_path / "zenithtune-out/s/trials/0000" / file).write_text(text)
    (tmp_path / "go").touch()
    tuner = start(tmp_path, command, "--resume", n=1)
    stdout, stderr = tuner.communicate(timeout=500)
    assert tuner.returncode == 0, stderr
    assert "best: trial 1, x=1: 1" in stdout
    assert marked_processes(tmp_path) == []


def test_asking_after_the_end_starts_nothing(tmp_path: Path) -> None:
    class Keeps(Asks):
        def optimize(self, eval_fn: EvalFunction, search_space: Any, direction: Any) -> None:
            self.kept = eval_fn

    strategy = Keeps()
    witness = Witness()
    tune(tmp_path, strategy=strategy, listener=witness).optimize()
    with pytest.raises(TrialExhausted, match="over"):
        strategy.kept({"x": 1})
    assert witness.trials == []


def test_a_runner_of_ones_own_serves_twice(tmp_path: Path) -> None:
    runner = LocalRunner()
    tuner = tune(tmp_path, runner=runner)
    assert tuner.optimize(n_trials=1) == (1.0, {"x": 1})
    assert tuner.optimize(n_trials=2) == (2.0, {"x": 2})
    runner.close()
    runner.close()  # as often as one likes


@pytest.mark.parametrize("command", ["echo \0 {x}", "echo \udcff {x}"])
def test_a_command_that_is_no_text_is_refused(tmp_path: Path, command: str) -> None:
    with pytest.raises(UsageError, match="valid text"):
        tune(tmp_path, command)


@pytest.mark.parametrize("name", ["studies.db", "日" * 40, "a/b", "-x", "x" * 101])
def test_a_study_name_that_cannot_be_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="study name"):
        tune(tmp_path, study_name=name)


def test_a_presets_files_stay_in_the_trials_folder(tmp_path: Path) -> None:
    class Escapes(ToyPreset):
        def files(self, params: Mapping[str, Value]) -> dict[str, str]:
            return {"../../evil": "x"}

    with pytest.raises(UsageError, match="trial's folder"):
        tune(tmp_path, preset=Escapes()).optimize()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--", "mytrain", "--hf-token", "hf_abcdefghijklmnop1234"],
        ["--preset", "demo", "--", "mytool --hf-token=hf_abcdefghijklmnop1234 'open"],
        ["--preset", "demo", "--", "env", "HF_TOKEN=hf_abcdefghijklmnop1234"],
        ["--preset", "demo", "--db", "foo://u:abcdefghijklmnop1234@127.0.0.1:1/x", "--", "true"],
    ],
)
def test_no_error_message_shows_a_secret(
    zenithtune: Callable[..., subprocess.CompletedProcess[str]], arguments: list[str]
) -> None:
    done = zenithtune("optimize", "-v", *arguments)
    assert done.returncode == 2, done
    assert "abcdefghijklmnop1234" not in done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "env", [{"PYTHONIOENCODING": "latin-1"}, {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "POSIX"}]
)
def test_a_terminal_that_cannot_show_every_character_ends_no_study(tmp_path: Path, env: dict[str, str]) -> None:
    script = tmp_path / "talk.sh"
    script.write_text("echo 'RuntimeError: \u65e5\u672c " + "x" * 300 + "'; exit 1\n", encoding="utf-8")
    command = f"bash {script} {{x}}"
    plugins = toy_plugin.install(tmp_path / "plugins")
    arguments = ["optimize", "-v", "--preset", "toy", "--", command]
    done = subprocess.run(
        [sys.executable, "-m", "zenith_tune.cli.main", *arguments],
        cwd=tmp_path,
        env={**os.environ, **plugins, **env},
        capture_output=True,
    )
    assert done.returncode == 1, done.stderr
    assert b"every trial failed" in done.stdout


def test_a_working_folder_that_is_deleted_stops_the_study_which_keeps_its_results(
    tmp_path: Path,
) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    work.mkdir()
    (tmp_path / "t.sh").write_text(f"echo value: $1; [ $1 != 2 ] || rm -r {work}\n")
    space = ("--space", "x=1,2,3", "--objective", r"value: (\S+)", "--strategy", "grid", "--no-baseline")
    study = ("--study-name", "s", "--output-dir", str(out))
    arguments = ["optimize", *space, *study, "--", "bash", "../t.sh", "{x}"]
    done = run_command(arguments, work, os.environ, timeout_s=500)
    assert done.returncode == 1 and str(work) in done.stderr.splitlines()[-1], done.stderr
    trials = json.loads((out / "s/study.json").read_text())["trials"]
    assert [trial["value"] for trial in trials] == [1, 2]


@pytest.mark.parametrize("name", ["a?b", "a%b", "a{b}", "a#b"])
def test_an_output_folder_that_no_database_address_can_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="must not hold"):
        PresetTuner("echo value: {x}", ToyPreset([1]), output_dir=tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", ["get_search_space", "apply_parameters", "evaluator", "get_recommended_strategy"])
def test_a_preset_that_returns_nothing_is_named_with_what_it_must_return(tmp_path: Path, method: str) -> None:
    broken = type("Broken", (ToyPreset,), {method: lambda self, *_: None})
    with pytest.raises(UsageError, match="but returned None"):
        PresetTuner("echo value: {x}", broken([1]), output_dir=tmp_path, listener=Witness()).optimize()


def test_a_full_device_behind_standard_output_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "zenith_tune.cli.main", "--help"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and "No space left" in done.stderr
    assert "unexpected" not in done.stderr
