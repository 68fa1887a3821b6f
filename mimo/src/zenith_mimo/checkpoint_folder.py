"""A folder of checkpoints: each save is written into a folder of its own, and one small file names the last whole."""

from __future__ import annotations

import os
import re
import shutil
import uuid
from pathlib import Path

from zenith_tune.errors import UsageError

LATEST = "latest"
_SAVE = re.compile(r"iter_\d{7,}-[0-9a-f]{8}")


def new_save_name(iteration: int) -> str:
    """Return the name of a folder that no other save has."""
    return f"iter_{iteration:07d}-{uuid.uuid4().hex[:8]}"


def latest_checkpoint(folder: Path) -> Path:
    """Return the folder of the last finished save; raises UsageError without one."""
    pointer = folder / LATEST
    # Up to version 0.2 a checkpoint lay in the folder itself.
    found = folder / pointer.read_text().strip() if pointer.is_file() else folder
    if not (found / ".metadata").is_file():
        raise UsageError(f"{folder} holds no finished checkpoint: {found} has no file .metadata.")
    return found


def switch_to(folder: Path, name: str) -> None:
    """Make a finished save the folder's checkpoint in one stroke, and remove the last one and saves that failed."""
    beside = folder / f".{LATEST}.{name}"
    with beside.open("w") as file:
        file.write(f"{name}\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(folder / LATEST)
    for other in folder.iterdir():
        if other.name != name and _SAVE.fullmatch(other.name):
            shutil.rmtree(other, ignore_errors=True)
