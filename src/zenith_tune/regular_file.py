"""Regular files only: what strangers leave under a name may be a link, a pipe or a device that never ends."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def open_regular(path: Path, *, writable: bool = False) -> BinaryIO:
    """Open a regular file without following a link or waiting for anybody; raise OSError for anything else."""
    descriptor = os.open(path, _FLAGS | (os.O_RDWR if writable else os.O_RDONLY))
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
            raise OSError(code, "not a regular file", str(path))
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "r+b" if writable else "rb")
