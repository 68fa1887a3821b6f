from __future__ import annotations

import pytest

from zenith_tune.mimo.measured_step import MARK, LinkTime, MeasuredStep, PassKey, TimedPass

STEP = MeasuredStep(
    passes=(TimedPass(PassKey("llm", 2, 1, 0, 4, True), 12, 0.001, 0.02, 0.003),),
    sync_s=0.004,
    end_s=0.011,
    messages=(LinkTime(2, 256.0, 0.0002),),
    sums=(LinkTime(2, 256.0, 0.0003), LinkTime(4, 256.0, 0.0007)),
)


def test_a_log_tells_what_was_measured() -> None:
    assert MeasuredStep.read(f"iteration 1\n{STEP.line()}\n iteration 2\n") == STEP
    assert STEP.line().count("\n") == 0


def test_the_last_whole_line_counts() -> None:
    earlier = MeasuredStep(passes=(), sync_s=1.0, end_s=2.0)
    assert MeasuredStep.read(f"{earlier.line()}\n{STEP.line()}\n") == STEP
    assert MeasuredStep.read(f"{STEP.line()}\n{earlier.line()[:-9]}") == STEP


@pytest.mark.parametrize("text", ["", "1", "[]", "{}", '{"passes":[[1]],"end":[],"messages":[],"sums":[]}', "{"])
def test_anything_else_tells_nothing(text: str) -> None:
    assert MeasuredStep.of(text) is None
    assert MeasuredStep.read(MARK + text) is None
