"""The examples of log."""

from __future__ import annotations

from zenith_tune.presets.torchtitan.log import first_rank


def test_the_lowest_rank_is_read() -> None:
    assert first_rank("start\n[rank1]:a\n[rank0]:b\n") == "b"
