"""The examples of measured run."""

from __future__ import annotations

from zenith_tune.calibrate.measured_run import is_memory, is_step


def test_a_step_takes_between_nothing_and_forever() -> None:
    assert is_step(0.5)
    assert not is_step(1e17)
    assert not is_step(float("nan"))


def test_memory_in_use_is_that_of_a_gpu() -> None:
    assert is_memory(80 * 2**30)
    assert not is_memory(0)
    assert not is_memory(2**59)
