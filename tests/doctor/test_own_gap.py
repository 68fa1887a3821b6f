"""A run is held against another of one's own: real runs of Megatron-LM on an H200, each with one thing taken away."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command_runs import Run, running
from zenith_tune.api.diagnose import diagnose
from zenith_tune.doctor.published_gap import OwnRun, SpeedGap
from zenith_tune.errors import UsageError

LOGS = Path(__file__).parent / "h200_logs"
"""What benchmarks/h200_short_steps.py had printed on 2026-11-19: steps, memory, and the arguments that are read."""
GOOD = LOGS / "wide.txt"


def gap_of(log: str) -> SpeedGap:
    found = diagnose(LOGS / log, cluster="h200x1", against=GOOD).gap
    assert isinstance(found, SpeedGap) and isinstance(found.other, OwnRun)
    return found


@pytest.mark.parametrize(
    ("log", "cause", "change"),
    [
        ("full_recomputation.txt", "recomputation", "recompute full/uniform1 -> none"),
        ("selective_recomputation.txt", "recomputation", "recompute selective -> none"),
        ("mbs_1.txt", "micro-batch", "mbs 1 -> 2"),
        ("64_micro-batches.txt", "micro-batch", "mbs 1 -> 2"),
        ("no_fused_loss.txt", "+ loss_fusion=native", ""),
        ("no_fused_SwiGLU.txt", "+ swiglu_fusion", ""),
    ],
)
def test_what_was_taken_away_is_named_first_and_its_size_is_right_within_2_percent(
    log: str, cause: str, change: str
) -> None:
    gap = gap_of(log)
    assert (gap.causes[0].name, gap.causes[0].change) == (cause, change)
    assert gap.causes[0].factor == pytest.approx(gap.ratio, rel=0.02)


def test_seen_from_the_better_run_the_same_lever_is_the_reason() -> None:
    gap = diagnose(GOOD, cluster="h200x1", against=LOGS / "no_fused_loss.txt").gap
    assert isinstance(gap, SpeedGap) and gap.ratio < 1
    assert gap.causes[0].name == "- loss_fusion=native" and gap.causes[0].factor < 1


def test_the_command_line_says_which_run_is_faster_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    doctor: Run = running("doctor", capsys)
    arguments = (str(LOGS / "full_recomputation.txt"), "--cluster", "h200x1", "--against", str(GOOD))
    code, out, _ = doctor(*arguments)
    assert code == 0 and f"{GOOD} has 329, 1.27 times as fast:" in out
    found = json.loads(doctor(*arguments, "--json")[1])["against"]
    assert found["own"]["run"] == str(GOOD) and found["causes"][0]["name"] == "recomputation"


def test_a_run_without_a_speed_is_not_compared(tmp_path: Path) -> None:
    dump = GOOD.read_text().partition("iteration")[0]
    (tmp_path / "started.log").write_text(f"{dump}\ntorch.OutOfMemoryError: CUDA out of memory.\n")
    found = diagnose(GOOD, cluster="h200x1", against=tmp_path / "started.log")
    assert f"not compared: {tmp_path / 'started.log'} shows no speed" in str(found)
    with pytest.raises(UsageError, match="cannot be read"):
        diagnose(GOOD, cluster="h200x1", against=tmp_path / "none.log")
