"""A disk without space for some files: Python's own open says so, in the process that asks for it."""

from __future__ import annotations

import os
from pathlib import Path

TEXT = """
import builtins, errno, io, os, sys

def full(path, mode):
    return isinstance(path, (str, os.PathLike)) and {where!r} in os.path.basename(path) and set(mode) & set("wa+")

def opener(path, mode="r", *args, real=io.open, **kwargs):
    if full(path, mode):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))
    return real(path, mode, *args, **kwargs)

if "zenith_tune.cli.main" in sys.orig_argv:
    io.open = builtins.open = opener
"""


def write_full_disk(folder: Path, where: str) -> None:
    """Write what Python loads first: no file whose name holds `where` can be written."""
    place = folder / "full_disk"
    place.mkdir()
    (place / "sitecustomize.py").write_text(TEXT.format(where=where))


def full_disk(folder: Path) -> dict[str, str]:
    """Return the variables with which it is loaded."""
    known = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder / "full_disk"), known]))}
