"""The command `zenithtune resume`, and the options that a study is recorded with."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.command_runs import Run, running
from tests.conftest import FAKE_TRAINER
from tests.report.studies import recorded

ZenithTune = Callable[..., subprocess.CompletedProcess[str]]
TRAINER = (sys.executable, str(FAKE_TRAINER), "--iteration-seconds", "0.001")
OPTIONS = (
    *("--preset", "megatron", "--args", "n_gpus=8", "--args", "gbs=16", "--strategy", "random"),
    *("--strategy-args", "seed=3", "--no-confirm", "--headroom", "1%"),
)


def study(folder: Path, name: str = "s") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "zenithtune-out" / name / "study.json").read_text())
    return content


def test_a_study_is_continued_with_the_options_it_was_started_with(zenithtune: ZenithTune, tmp_path: Path) -> None:
    place = ("--study-name", "s", "--n-trials", "2")
    assert zenithtune("optimize", *OPTIONS, *place, "--", *TRAINER).returncode == 0
    before = study(tmp_path)
    assert before["options"] == [*OPTIONS, "--n-trials", "2"]
    done = zenithtune("resume", "s", "--n-trials", "4")
    assert done.returncode == 0, done.stderr
    after = study(tmp_path)
    assert len(after["trials"]) == len(before["trials"]) + 2
    assert after["search"]["strategy"] == "random" and after["search"]["memory"]["headroom"] == 0.01
    assert after["options"] == [*OPTIONS, "--n-trials", "4"]


def test_what_counts_of_a_log_stays_what_it_was_when_the_study_began(zenithtune: ZenithTune, tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("import sys\nfor n in (9, 1, 2, 1, 7): print('x', n * int(sys.argv[2]), 'it/s')\n")
    begun = (*("--study-name", "s", "--no-confirm", "--objective", r"x (\S+) it/s"),)
    command = ("--space", "n=1,2", "--", sys.executable, "t.py", "--n", "1")
    assert zenithtune("optimize", *begun, "--select", "last", "--minimize", *command).returncode == 0
    assert study(tmp_path)["evaluator"].endswith("last, minimize")
    again = zenithtune("optimize", *begun, "--resume", *command)
    assert again.returncode == 0, again.stderr
    assert zenithtune("optimize", *begun, "--resume", "--select", "steady", *command).returncode == 2
    fresh = zenithtune("optimize", *begun[2:], "--study-name", "t", *command)
    assert fresh.returncode == 0 and study(tmp_path, "t")["evaluator"].endswith("steady, maximize")


def test_a_folder_names_a_study_from_anywhere(zenithtune: ZenithTune, tmp_path: Path) -> None:
    started = zenithtune("optimize", *OPTIONS, "--study-name", "s", "--n-trials", "1", "--", *TRAINER)
    assert started.returncode == 0
    num_before = len(study(tmp_path)["trials"])
    moved = tmp_path / "elsewhere"
    (tmp_path / "zenithtune-out").rename(moved)
    assert zenithtune("resume", str(moved / "s"), "--n-trials", "2").returncode == 0
    assert len(json.loads((moved / "s" / "study.json").read_text())["trials"]) == num_before + 1


def test_a_study_with_a_masked_secret_asks_for_its_own_command(zenithtune: ZenithTune, tmp_path: Path) -> None:
    secret = ("env", "HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123", *TRAINER)
    assert zenithtune("optimize", *OPTIONS, "--study-name", "s", "--n-trials", "1", "--", *secret).returncode == 0
    assert "hf_abcdef" not in (tmp_path / "zenithtune-out" / "s" / "study.json").read_text()
    done = zenithtune("resume", "s")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


@pytest.fixture
def resume(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    recorded(tmp_path / "zenithtune-out")
    return running("resume", capsys)


@pytest.mark.parametrize("arguments", [["s"], ["nope"], [], ["s", "--dry-run"], ["s", "--", "python", "train.py"]])
def test_a_study_that_cannot_be_resumed_is_one_line(resume: Run, arguments: list[str]) -> None:
    done = resume(*arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
