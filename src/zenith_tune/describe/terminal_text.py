"""Text that a terminal was meant to show: what it would not show as words is left out."""

from __future__ import annotations

import re

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")


def plain_text(text: str) -> str:
    """Return a text without colours, erased lines and titles of windows.

    >>> plain_text("\\x1b]0;title\\x07\\x1b[1;31mred\\x1b[0m")
    'red'
    """
    return _ESCAPES.sub("", text) if "\x1b" in text else text
