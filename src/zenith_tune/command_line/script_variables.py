"""What the script of a command sets for itself, as far as its text can be read."""

from __future__ import annotations

import os
import re
from pathlib import Path

from zenith_tune.errors import CommandError
from zenith_tune.regular_file import open_regular
from zenith_tune.shell.target import find_target

_READ_BYTES = 1 << 20


def fixed_in_script(command: str, name: str) -> tuple[str, str] | None:
    """Return the script of a command and the line in which it sets the variable `name` whatever that was before.

    None where it does not, where a line up to there looks at the variable first, and where there is no telling.
    """
    try:
        target = find_target(command)
    except CommandError:
        return None
    script = target.words[target.first - 1]
    if not script.is_static or (target.changes_folder and not Path(script.value).is_absolute()):
        return None
    signs = _python(name) if script.value.endswith(".py") else _shell(name) if target.by_shell else None
    if signs is None:
        return None
    for line in _lines(Path(script.value)):
        code = line.partition(" #")[0]
        if signs.fixes.search(code):
            return script.value, code.strip()
        if signs.looks.search(code):
            return None
    return None


class _Signs:
    """Hold by what a line is known that looks at a variable, and one that sets it."""

    def __init__(self, looks: str, fixes: str) -> None:
        self.looks = re.compile(looks)
        self.fixes = re.compile(fixes)


def _shell(name: str) -> _Signs:
    looks = rf"\$\{{?{name}\b"
    return _Signs(looks, rf"^(?!.*{looks})(?:[^#]*[\s;&|(])?{name}=")


def _python(name: str) -> _Signs:
    quoted = rf"""["']{name}["']"""
    # Further in, in a function or behind an `if`, it may never be run.
    return _Signs(quoted, rf"^os\.environ\[{quoted}\]\s*=(?!=)(?!.*{quoted})")


def _lines(path: Path) -> list[str]:
    try:
        with open_regular(Path(os.path.realpath(path))) as file:
            return file.read(_READ_BYTES).decode(errors="replace").splitlines()
    except (OSError, ValueError):
        return []
