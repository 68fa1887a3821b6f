"""The examples of view."""

from __future__ import annotations

from zenith_tune.record.view import mask_lines


def test_secrets_of_lines_are_masked_throughout() -> None:
    assert mask_lines(["step 1 | tokens/s: 900", "HF_TOKEN=abcdef", "step 2, once more abcdef"]) == [
        "step 1 | tokens/s: 900",
        "HF_TOKEN=***",
        "step 2, once more ***",
    ]
