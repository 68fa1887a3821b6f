"""The job of preset mimo."""

from __future__ import annotations

from zenith_mimo.preset.job import read_images


def test_shares_of_images_become_samples() -> None:
    assert sorted(read_images("1:3+4:1")) == [1] * 48 + [4] * 16
