"""Whether somebody tunes a study just now."""

from __future__ import annotations

from pathlib import Path

LOCKS = Path("/proc/locks")


def is_tuned(database: Path, study_name: str) -> bool | None:
    """Tell whether a tuner of this machine holds the study's lock; None where that cannot be seen.

    The kernel's list is read, and the lock is not tried: a tuner that starts at that moment would find it taken.
    """
    file = database.resolve()
    try:
        inode = file.with_name(f".{file.name}.{study_name}.lock").stat().st_ino
        lines = LOCKS.read_text().splitlines()
    except OSError:
        return None
    # The device is left out: of some file systems the kernel lists another than it tells of the file.
    return any("FLOCK" in line and f":{inode} " in line for line in lines)
