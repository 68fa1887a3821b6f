"""The values, names and paths that a text for people must hold, however it is worded."""

from __future__ import annotations

import re


def mentions(text: object, *parts: object) -> bool:
    """Return whether each part stands in the text on its own: 8 is neither in 18 nor in 0.8."""
    return all(re.search(rf"(?<!\w)(?<!\d\.){re.escape(str(part))}(?!\w|\.\d)", str(text)) for part in parts)
