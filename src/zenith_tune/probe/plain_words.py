"""Words of a shell script that only a shell would know, made plain where it is clear what they come to.

A probe runs the training by itself, without the script around it: `$(cd "$(dirname "$0")" && pwd)` is the folder of the
script, but what `$(date +%F)` would be is not for it to say.
"""

from __future__ import annotations

import re
from pathlib import Path

_SELF = r"\$(?:0|\{0\}|\{?BASH_SOURCE(?:\[0\])?\}?)"
_FOLDER = rf"[\"']?\$\(\s*dirname\s+(?:--\s+)?[\"']?{_SELF}[\"']?\s*\)[\"']?"
_HERE = re.compile(
    rf"\$\(\s*cd\s+(?:--\s+|-P\s+)?{_FOLDER}(?:\s*>\s*/dev/null(?:\s+2>&1)?)?\s*(?:&&|;)\s*pwd(?:\s+-P)?\s*\)|{_FOLDER}"
)
_PWD = re.compile(r"\$\(\s*pwd\s*\)|\$\{?PWD\}?\b")
_UNKNOWN = re.compile(r"\$[({\w]|`")


def plain_word(word: str, *, script: str, folder: Path) -> str | None:
    """Return a word with the folder of its script put in; None where only a shell knows what it is.

    >>> plain_word('$(cd "$(dirname "$0")" && pwd)/data', script="jobs/train.sh", folder=Path("/home/me"))
    '/home/me/jobs/data'
    >>> plain_word("out-$(date +%F)", script="train.sh", folder=Path("/home/me"))
    """
    here = str((folder / script).parent) if script else str(folder)
    word = _HERE.sub(lambda match: here, word)
    word = _PWD.sub(lambda match: str(folder), word)
    return None if _UNKNOWN.search(word) else word
