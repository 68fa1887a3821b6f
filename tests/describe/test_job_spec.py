"""The examples of job spec."""

from __future__ import annotations

from zenith_tune.describe.job_spec import is_narrow


def test_eight_bits_or_fewer_are_narrow() -> None:
    assert is_narrow("FP8-MX")
    assert is_narrow("nvfp4")
    assert not is_narrow("bf16")
