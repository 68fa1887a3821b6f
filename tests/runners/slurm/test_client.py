"""The examples of client."""

from __future__ import annotations

from zenith_tune.runners.slurm.client import fields, megabytes


def test_a_field_may_hold_blanks() -> None:
    assert fields("NodeName=n1 OS=Linux 6.1 #1 SMP State=IDLE+DRAIN Reason=bad fan")["OS"] == "Linux 6.1 #1 SMP"


def test_a_size_of_memory_is_read_in_megabytes() -> None:
    assert [megabytes(text) for text in ("1000", "64G", "2T", "all")] == [1000, 65536, 2097152, None]
