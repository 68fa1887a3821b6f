"""The examples of study markdown."""

from __future__ import annotations

from zenith_tune.report.study_markdown import escaped


def test_escaped_text_is_no_markdown() -> None:
    assert escaped("a|b <img> *c*") == "a\\|b \\<img\\> \\*c\\*"
