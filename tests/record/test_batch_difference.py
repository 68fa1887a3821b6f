from __future__ import annotations

import re
from typing import Any

import pytest

from zenith_tune.record.export import batch_note, trained_batch
from zenith_tune.study.parameters import Direction
from zenith_tune.study.study import Study
from zenith_tune.study.trial import Outcome, Trial


def run(number: int, value: float | None = 10.0, **more: Any) -> Trial:
    outcome = Outcome.OK if value is not None else Outcome.OOM
    return Trial(params={}, outcome=outcome, value=value, number=number, is_baseline=number == 0, **more)


def study(*trials: Trial) -> Study:
    made = Study(Direction.MAXIMIZE)
    for trial in trials:
        made.add(trial)
    return made


def test_another_batch_by_the_flags_or_by_the_log_is_noted_beside_the_gain() -> None:
    own = run(0, command="torchrun train.py", extra={"global_batch_size": 16})
    tried = run(1, 20.0, command="torchrun train.py --global-batch-size 64")
    assert re.findall(r"\d+", batch_note(study(own, tried))) == ["16", "64"]


@pytest.mark.parametrize(
    ("own", "tried"),
    [
        (run(0, command="t --global-batch-size 64"), run(1, extra={"global_batch_size": 64})),
        (run(0, command="bash train.sh"), run(1, command="bash train.sh --global-batch-size 64")),
        (run(0, None, command="t --global-batch-size 16"), run(1, command="t --global-batch-size 64")),
        (run(0, command="t --global-batch-size 16"), run(1, None, command="t --global-batch-size 64")),
    ],
)
def test_the_same_batch_an_unknown_one_and_no_gain_need_no_note(own: Trial, tried: Trial) -> None:
    assert batch_note(study(own, tried)) == ""


def test_the_log_is_believed_more_than_the_command() -> None:
    assert trained_batch(run(1, command="t --global_batch_size=8", extra={"global_batch_size": 32})) == 32
    assert trained_batch(run(1, command="t --global_batch_size=8")) == 8
    assert [trained_batch(run(1, command=f"t --global-batch-size {odd}")) for odd in ("$B", "0", "", "9" * 30)] == [
        None
    ] * 4
    assert trained_batch(run(1, command="t 'unfinished")) is None
