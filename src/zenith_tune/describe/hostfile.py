"""The hosts of a hostfile as DeepSpeed and MPI write it: one line `name slots=8` for each."""

from __future__ import annotations

import re
from pathlib import Path

from zenith_tune.errors import UsageError
from zenith_tune.study.files import read_regular
from zenith_tune.units import MIB

_HOST = re.compile(r"(\S+)\s+slots=([0-9]{1,6})(?=\s|#|$)")


def read_hostfile(path: str) -> dict[str, int]:
    """Return the slots of each host, in the order of the file; raise OSError where it cannot be read."""
    return parse_hostfile(read_regular(Path(path), MIB).decode("utf-8", errors="replace"), path)


def parse_hostfile(text: str, path: str) -> dict[str, int]:
    """Return the slots of each host in a text; `path` is its name in messages."""
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        match = _HOST.match(entry)
        if match is None:
            problem = "a hostfile must have one line `name slots=8` for each host"
            raise UsageError(f"{problem}, but line {number} of {path} is {entry[:80]!r}: correct it")
        if match[1] in found:
            problem = f"a hostfile must name each host once, but line {number} of {path} is a duplicate of"
            raise UsageError(f"{problem} {match[1][:80]!r}", hint="take one out")
        found[match[1]] = int(match[2])
    return found
