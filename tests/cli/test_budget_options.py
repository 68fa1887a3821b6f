"""Budgets and limits of `zenithtune optimize`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.command_runs import running
from zenith_tune import UsageError
from zenith_tune.study.budget import parse_share

TRAINER = Path(__file__).parents[2] / "examples" / "fake_megatron_train.py"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--gpu-hours", "0"), "--gpu-hours"),
        (("--gpu-hours", "nan"), "--gpu-hours"),
        (("--max-hours", "-1"), "--max-hours"),
        (("--train-hours", "inf"), "--train-hours"),
        (("--price", "0"), "--price"),
        (("--max-memory", "70"), "--max-memory"),
        (("--max-memory", "0GiB"), "--max-memory"),
        (("--max-memory", "0.9"), "--max-memory"),
        (("--headroom", "100%"), "--headroom"),
        (("--headroom", "0.05"), "--headroom"),
        (("--headroom", ".05"), "--headroom"),
        (("--headroom", "5%", "--max-memory", "70GiB"), "--headroom"),
    ],
)
def test_a_limit_that_is_none_is_refused_in_one_line(
    options: tuple[str, ...], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ("--preset", "megatron", "--args", "n_gpus=8,gbs=16", "--output-dir", str(tmp_path))
    done = running("optimize", capsys)(*options, *args, "--", sys.executable, str(TRAINER))
    assert done.code == 2 and named in done.err and len(done.err.strip().splitlines()) == 1
    assert not [*tmp_path.iterdir()]


def test_limits_hold_and_the_verdict_says_what_was_spent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ("--preset", "megatron", "--args", "n_gpus=8,gbs=16", "--output-dir", str(tmp_path), "--study-name", "s")
    limits = ("--n-trials", "12", "--max-memory", "60GiB", "--price", "3600", "--json")
    done = running("optimize", capsys)(*limits, *args, "--", sys.executable, str(TRAINER))
    assert done.code == 0
    events = [json.loads(line) for line in done.out.splitlines()]
    end = events[-1]
    assert end["best"]["peak_memory_bytes"] <= 60 * 2**30
    runs = [event for event in events if event["event"] == "trial_finished"]
    spent_s = sum(event["duration_s"] for event in runs)
    verdict = end["verdict"]
    assert verdict["is_confirmed"] and verdict["gpu_hours"] == pytest.approx(8 * spent_s / 3600)
    assert verdict["cost"] == pytest.approx(8 * spent_s)
    assert runs[-1]["gpu_hours_spent"] == pytest.approx(verdict["gpu_hours"])
    stored = json.loads((tmp_path / "s" / "study.json").read_text())
    assert stored["search"]["verdict"]["sentence"] == verdict["sentence"]


@pytest.mark.parametrize(("text", "share"), [("0", 0.0), ("5", 0.05), ("5%", 0.05), ("0.5%", 0.005), ("1.5", 0.015)])
def test_a_share_is_read_in_percent(text: str, share: float) -> None:
    assert parse_share(text) == pytest.approx(share)


def test_a_share_below_one_without_its_sign_is_refused_with_both_readings() -> None:
    with pytest.raises(UsageError) as refused:
        parse_share("0.05")
    assert "5%" in str(refused.value) and "0.05%" in str(refused.value)


@pytest.mark.parametrize(
    ("cluster", "limit", "command", "num_notes"),
    [
        ("h100x8", "70GiB", ("python", "train.py"), 0),
        ("h100x8", "500GiB", ("python", "train.py"), 1),
        ("h100x8", "500GiB", ("python train.py > run.log 2>&1",), 2),
    ],
)
def test_what_cannot_work_is_said_before_the_first_run(
    cluster: str,
    limit: str,
    command: tuple[str, ...],
    num_notes: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    args = ("--preset", "megatron", "--args", f"n_gpus=8,gbs=16,cluster={cluster},model=llama3-8b,seq=4096")
    options = ("--dry-run", "--max-memory", limit, "--output-dir", str(tmp_path))
    done = running("optimize", capsys)(*options, *args, "--", *command)
    assert done.code == 0, done.err
    assert done.err.count("warning: ") == num_notes
