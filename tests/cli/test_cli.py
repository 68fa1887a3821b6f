from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from tests import toy_plugin
from tests.conftest import FAKE_TRAINER, ROOT
from tests.start_cost import assert_answers_quickly
from tests.thoroughness import few_quick
from zenith_tune import registry
from zenith_tune.cli.main import cli, main

Run = Callable[..., subprocess.CompletedProcess[str]]
MEGATRON = ("optimize", "--preset", "megatron", "--args", "n_gpus=8,gbs=16")
TRAIN = ("--", sys.executable, str(FAKE_TRAINER), "--iteration-seconds", "0.001")


def assert_one_line(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for part in parts:
        assert part in done.stderr


def test_the_documented_command_finds_a_faster_one(zenithtune: Run, tmp_path: Path) -> None:
    done = zenithtune(*MEGATRON, *TRAIN)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^1\.\d+x faster", done.stdout, re.MULTILINE)
    assert len(re.findall(r"^best: +trial \d+$", done.stdout, re.MULTILINE)) == 1
    for name in ("run", "page"):
        [path] = re.findall(rf"^{name}: .*?(\S+)$", done.stdout, re.MULTILINE)
        assert (tmp_path / path).is_file()
    assert done.stderr == ""


def test_json_mode_keeps_stdout_for_programs(zenithtune: Run) -> None:
    done = zenithtune(*MEGATRON, "--json", "--no-confirm", "--n-trials", "3", *TRAIN)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    kinds = [event["event"] for event in events]
    assert (kinds[0], kinds[-1]) == ("study_started", "study_ended")
    assert kinds.count("trial_finished") == 4, "three trials and the baseline"
    assert re.search(r"^no gain", done.stderr, re.MULTILINE)


def test_the_preset_is_recognised_and_the_choice_printed(zenithtune: Run) -> None:
    done = zenithtune("optimize", "--args", "n_gpus=8,gbs=16", "--n-trials", "1", *TRAIN)
    assert done.returncode == 0
    assert "preset megatron" in done.stdout


def test_a_dry_run_prints_commands_and_reasons_and_writes_nothing(zenithtune: Run, tmp_path: Path) -> None:
    done = zenithtune(*MEGATRON, "--strategy", "grid", "--dry-run", "--n-trials", "300", *TRAIN)
    assert done.returncode == 0
    assert done.stdout.count("--tensor-model-parallel-size ") == 300
    assert all(name in done.stdout.splitlines()[0] for name in ("dry run", "megatron", "grid"))
    assert "\ntrial    0 " in done.stdout
    assert re.search(r"\d+ % \(?\d.*!= 0", done.stdout)
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_as_json_is_json(zenithtune: Run) -> None:
    done = zenithtune(*MEGATRON, "--dry-run", "--json", *TRAIN)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[-1]["event"] == "dry_run_ended" and events[-1]["num_trials"] > 10


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        ("gbs=16", ["needs n_gpus", "n_gpus: int (required)"]),
        ("n_gpus=8", ["needs gbs"]),
        ("n_gpus=eight,gbs=16", ["n_gpus", "int", "'eight'"]),
        ("n_gpus=8.5,gbs=16", ["n_gpus", "int", "8.5"]),
        ("n_gpus=8,gbs=16,mbs=2", ["no argument 'mbs'", "mbs_max: int"]),
        ("n_gpu=8,gbs=16", ["did you mean 'n_gpus'"]),
        ("n_gpus=8,gbs=16,folding=maybe", ["folding", "bool"]),
        ("n_gpus=8,gbs=16,n_gpus=4", ["twice"]),
        ("n_gpus", ["k=v"]),
        ("n_gpus=,gbs=16", ["k=v"]),
        ("=8,gbs=16", ["k=v"]),
        ("n_gpus=8,,gbs=16", ["k=v"]),
        ("n_gpus=0,gbs=16", ["n_gpus"]),
        ("n_gpus=-8,gbs=16", ["n_gpus"]),
        ("n_gpus=8,gbs=0", ["gbs"]),
        ("n_gpus=8,gbs=16,mbs_max=0", ["mbs_max"]),
        ("n_gpus=8,gbs=16,num_layers=0", ["num_layers"]),
        ("n_gpus=8,gbs=16,model=./nowhere", ["nowhere"]),
        ("n_gpus=6,gbs=12", ["power of two", "6"]),
    ],
)
def test_every_mistake_in_args_is_one_line(zenithtune: Run, args: str, parts: list[str]) -> None:
    assert_one_line(zenithtune("optimize", "--preset", "megatron", "--args", args, *TRAIN), *parts)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["optimize", "--preset", "megatrn", *TRAIN], ["unknown preset", "did you mean 'megatron'"]),
        ([*MEGATRON, "--strategy", "gird", *TRAIN], ["did you mean 'grid'"]),
        ([*MEGATRON, "--evaluator", "rgex", *TRAIN], ["did you mean 'regex'"]),
        ([*MEGATRON, "--strategy", "random", "--strategy-args", "sed=1", *TRAIN], ["'sed'", "seed: int"]),
        ([*MEGATRON, "--strategy-args", "seed=1", *TRAIN], ["--strategy"]),
        ([*MEGATRON, "--objective", "no group", *TRAIN], ["exactly one group"]),
        ([*MEGATRON, "--objective", "(", *TRAIN], ["'('"]),
        ([*MEGATRON, "--maximize", *TRAIN], ["--objective"]),
        ([*MEGATRON, "--select", "best", *TRAIN], ["--select"]),
        ([*MEGATRON, "--n-trials", "0", *TRAIN], ["--n-trials"]),
        ([*MEGATRON, "--timeout", "-1", *TRAIN], ["--timeout", "-1"]),
        ([*MEGATRON, "--timeout-dynamic", "--timeout-margin", "0.5", *TRAIN], ["margin"]),
        ([*MEGATRON, "--timeout-margin", "2", *TRAIN], ["--timeout-dynamic"]),
        ([*MEGATRON, "--early-precision", "0", *TRAIN], ["--early-precision", "above 0", "got 0"]),
        ([*MEGATRON, "--early-precision", "nan", *TRAIN], ["--early-precision"]),
        ([*MEGATRON, "--no-early-stop", "--early-precision", "2", *TRAIN], ["--early-stop"]),
        (["--preset", "megatron"], ["zenithtune optimize"]),
        ([*MEGATRON, "--", "bash", "x.sh", "{tpp}"], ["did you mean {tp}"]),
        ([*MEGATRON, "--", "bash", "x.sh", "{mbs}", "{foo}"], ["{foo}", "{mbs}"]),
        ([*MEGATRON, "--study-name", "../evil", *TRAIN], ["study name"]),
        ([*MEGATRON, "--db", "/nowhere/at/all.db", *TRAIN], ["does not exist"]),
        ([*MEGATRON, "--no-such-option", *TRAIN], ["--no-such-option", "after --"]),
        ([*MEGATRON, "--"], ["empty"]),
        ([*MEGATRON], ["empty"]),
        ([*MEGATRON, "--", "no-such-program-anywhere"], ["no-such-program-anywhere"]),
        (["optimize", "--args", "n_gpus=8,gbs=16", "--", "true"], ["no preset recognises", "demo, ", "megatron-lm"]),
        ([*MEGATRON, "--", "for i in 1 2; do python a.py; python b.py; done"], ["{tp}"]),
        (["optimise"], ["optimise"]),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_2(zenithtune: Run, arguments: list[str], parts: list[str]) -> None:
    assert_one_line(zenithtune(*arguments), *parts)


@pytest.mark.parametrize(
    "arguments",
    few_quick(
        [
            ["--help"],
            ["optimize", "--help"],
            ["--version"],
            ["optimise"],
            ["optimize", "--preset", "megatrn", *TRAIN],
            ["optimize", "--preset", "megatron", "--args", "n_gpus=eight,gbs=16", *TRAIN],
            [*MEGATRON, "--", "no-such-program-anywhere"],
            [*MEGATRON, "--strategy", "optuna", "--strategy-args", "foo=1", *TRAIN],
            [*MEGATRON, "--strategy", "optuna", "--strategy-args", "sampler=bogus", *TRAIN],
        ],
        6,
    ),
)
def test_help_and_usage_errors_answer_quickly(arguments: list[str]) -> None:
    argv = [sys.executable, "-m", "zenith_tune.cli.main", *arguments]
    assert_answers_quickly(lambda: subprocess.run(argv, capture_output=True, cwd=ROOT))


def test_a_study_that_exists_or_is_another_is_one_line(zenithtune: Run) -> None:
    assert zenithtune(*MEGATRON, "--n-trials", "1", "--study-name", "s", *TRAIN).returncode == 0
    assert_one_line(zenithtune(*MEGATRON, "--study-name", "s", *TRAIN), "--resume")
    other = ["optimize", "--preset", "demo", "--study-name", "s", "--resume", *TRAIN]
    assert_one_line(zenithtune(*other), "preset 'megatron'")


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, zenith_tune, zenith_tune.tuner; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"optuna", "numpy", "rich", "sqlalchemy", "torch", "huggingface_hub"} & set(loaded)


def test_an_unwritable_output_folder_is_one_line(zenithtune: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = zenithtune(*MEGATRON, "--output-dir", "file/out", *TRAIN)
    assert done.returncode == 2
    assert "file/out" in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "content", [b"this is no database, but as long as one\n", b"SQLite format 3\0" + b"\xff" * 5000]
)
def test_a_corrupt_database_is_one_line_and_left_as_it_is(zenithtune: Run, tmp_path: Path, content: bytes) -> None:
    database = tmp_path / "bad.db"
    database.write_bytes(content)
    done = zenithtune(*MEGATRON, "--db", "bad.db", *TRAIN)
    assert done.returncode == 2
    assert "bad.db" in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert database.read_bytes() == content


def test_a_study_of_another_preset_is_one_line(zenithtune: Run) -> None:
    assert zenithtune(*MEGATRON, "--n-trials", "1", "--study-name", "s", *TRAIN).returncode == 0
    done = zenithtune("optimize", "--preset", "demo", "--study-name", "s", "--resume", *TRAIN)
    assert done.returncode == 2
    assert "preset 'megatron'" in done.stderr and "'demo'" in done.stderr


def test_a_metric_that_never_appears_is_one_line(zenithtune: Run) -> None:
    done = zenithtune(*MEGATRON, "--objective", r"never (\d+)", *TRAIN)
    assert done.returncode == 2
    assert "never" in done.stderr and len(done.stderr.splitlines()) == 1


def test_an_objective_of_ones_own_is_read(zenithtune: Run) -> None:
    arguments = ["--objective", r"elapsed time per iteration \(ms\): ([\d.]+)", "--select", "median"]
    done = zenithtune(*MEGATRON, "--n-trials", "2", "--json", *arguments, *TRAIN)
    assert done.returncode == 0, done.stderr
    end = json.loads(done.stdout.splitlines()[-1])
    assert end["best"]["value"] > 0


def test_no_success_at_all_is_exit_code_1(zenithtune: Run) -> None:
    done = zenithtune(*MEGATRON, "--n-trials", "2", *TRAIN, "--crash")
    assert done.returncode == 1
    assert "nothing was tuned" in done.stdout and "\nrun: " not in done.stdout


def test_resume_without_a_name_continues_the_last_study(zenithtune: Run) -> None:
    assert zenithtune(*MEGATRON, "--n-trials", "2", *TRAIN).returncode == 0
    done = zenithtune(*MEGATRON, "--n-trials", "3", "--resume", *TRAIN)
    assert "resumed: 2 trials kept" in done.stdout


def test_plugins_are_found_and_a_broken_one_is_named_and_skipped(zenithtune: Run, tmp_path: Path) -> None:
    env = toy_plugin.install(tmp_path / "plugins")
    done = zenithtune("optimize", "--preset", "toy", "--args", "n=2", "--", "echo", "value: {x}", env=env)
    assert done.returncode == 0, done.stderr
    done = zenithtune("optimize", "--", "echo", "value: {x}", env=env)
    assert done.returncode == 2
    assert "'broken'" in done.stderr and "'toy-plugin'" in done.stderr
    assert "a_module_that_nobody_has" in done.stderr


def test_without_arguments_help_is_shown(zenithtune: Run) -> None:
    done = zenithtune()
    assert "optimize" in done.stdout and done.returncode == 0


def test_a_traceback_only_with_debug(zenithtune: Run) -> None:
    arguments = ["optimize", "--preset", "megatron", "--args", "n_gpus=0,gbs=1"]
    assert "Traceback" not in zenithtune(*arguments, *TRAIN).stderr
    assert "Traceback" in zenithtune(*arguments, "--debug", *TRAIN).stderr


def test_the_job_is_stated_by_options_and_not_twice(zenithtune: Run) -> None:
    job = ["--gpus", "8", "--gbs", "16", "--n-trials", "1", "--preset", "megatron", "--json"]
    done = zenithtune("optimize", *job, "--dry-run", *TRAIN)
    assert done.returncode == 0, done.stderr
    given = zenithtune("optimize", "--preset", "megatron", "--args", "n_gpus=8,gbs=16", "--n-trials", "1", "--json",
                       "--dry-run", *TRAIN)  # fmt: skip
    assert done.stdout == given.stdout
    assert_one_line(zenithtune("optimize", *job, "--args", "gbs=16", *TRAIN), "--gbs", "--args gbs=")
    assert_one_line(zenithtune("optimize", "--preset", "space", "--seq", "4", *TRAIN), "space", "seq")


def test_help_lists_common_options_by_group_and_help_all_lists_all() -> None:
    from click.testing import CliRunner

    from zenith_tune.cli.main import cli

    short, whole = (CliRunner().invoke(cli, ["optimize", flag]).output for flag in ("--help", "--help-all"))
    heads = [line.rstrip(":") for line in short.splitlines() if line and line[0] != " " and line.endswith(":")]
    assert heads == ["Job", "Search", "Budget", "Where it runs", "Output"]
    options = [set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", text, re.MULTILINE)) for text in (short, whole)]
    assert options[0] < options[1] and "--max-duplicates" in options[1] - options[0]
    assert len(options[0]) <= 33


def test_a_dry_run_lists_no_trial_that_is_the_own_command(zenithtune: Run) -> None:
    given = ("--dry-run", "--evaluator", "duration", "--space", "x=1,2,3")
    done = zenithtune("optimize", *given, "--", "python", "train.py", "--x", "2")
    shown = re.findall(r"^trial +\d+  (\S+)", done.stdout, re.MULTILINE)
    assert shown == ["your", "x=1", "x=3"], done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["calibrate", "--rows", "runs.csv", "--output", "mine.json"], "calibration"),
        (["probe", "--", "python", "pretrain_gpt.py"], "calibration"),
        (["plan", "--probe", "2", "--", "python", "pretrain_gpt.py"], "calibration"),
        (["checkpoint", "merge", "old"], "checkpoint"),
        (["watch"], "kubernetes"),
    ],
)
def test_a_command_whose_package_is_not_installed_says_in_one_line_how_to_install_it(
    words: list[str], extra: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_installed", lambda *_: metadata.EntryPoints())
    monkeypatch.setattr(cli, "commands", {})
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and f"'zenith-tune[{extra}]'" in err
