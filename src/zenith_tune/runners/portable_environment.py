"""The part of this process's environment that means the same on another machine."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
# What a login on the other machine sets for itself, and what belongs to this terminal or to this machine's session.
_OWN_NAMES = frozenset(
    (
        *("HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "HOST", "PWD", "OLDPWD", "SHLVL", "_", "MAIL", "TMPDIR"),
        *("TERM", "TTY", "DISPLAY", "XAUTHORITY", "TMUX", "STY"),
    )
)
_OWN_PREFIXES = ("SSH_", "XDG_", "DBUS_", "SLURM_", "RAY_", "PYTEST_", "VSCODE_")


def portable(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a job takes along.

    >>> portable({"PATH": "/bin", "SSH_TTY": "/dev/pts/1", "NCCL_DEBUG": "INFO", "BASH_FUNC_x%%": "() {"})
    {'PATH': '/bin', 'NCCL_DEBUG': 'INFO'}
    """
    return {
        name: value
        for name, value in environment.items()
        if _NAME.fullmatch(name) and name not in _OWN_NAMES and not name.startswith(_OWN_PREFIXES)
    }
