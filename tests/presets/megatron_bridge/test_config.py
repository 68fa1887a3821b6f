"""The examples of config."""

from __future__ import annotations

from zenith_tune.presets.megatron_bridge.config import _text


def test_values_have_one_spelling() -> None:
    assert [_text(value) for value in (None, "null", True, ["core_attn"], '"Et|tL"', 8)] == [
        "null",
        "null",
        "true",
        "[core_attn]",
        "Et|tL",
        "8",
    ]
