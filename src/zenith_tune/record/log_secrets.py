"""Masks the secrets of a log's lines: only those that may tell of one are read as closely as a command is."""

from __future__ import annotations

import re
from collections.abc import Sequence

from zenith_tune.shell.secret_names import shaped_secrets
from zenith_tune.shell.secrets import find_secrets, mask

# Each name of a secret has one of these in it; the rates that trainers print at every step are no names.
_TELLING = re.compile(r"secret|pass|pw|credential|token(?!s?(?:/|_per_| per ))|key|auth|login|cookie", re.IGNORECASE)


def mask_lines(lines: Sequence[str]) -> list[str]:
    """Return lines with the secrets in plain sight masked, in a fraction of the time that a command takes.

    >>> mask_lines(["step 1 | tokens/s: 900", "HF_TOKEN=abcdef", "step 2, once more abcdef"])
    ['step 1 | tokens/s: 900', 'HF_TOKEN=***', 'step 2, once more ***']
    """
    text = "\n".join(lines)
    telling = [index for index, line in enumerate(lines) if _TELLING.search(line)]
    # A name at the end of a line has its value on the next.
    near = sorted({index + more for index in telling for more in (-1, 0, 1) if 0 <= index + more < len(lines)})
    found = find_secrets("\n".join(lines[index] for index in near)) if near else []
    return mask(text, [*found, *shaped_secrets(text)]).split("\n") if lines else []
