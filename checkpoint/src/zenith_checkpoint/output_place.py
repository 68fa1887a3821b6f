"""Where a checkpoint is written: next to its place under a name of its own, and put there only when it is whole."""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zenith_tune.errors import DiskFullError, UsageError
from zenith_tune.units import GIB, MIB, count, format_bytes

PREFIX = "pytorch_model_tp_"
SHARD_NAME = re.compile(r"pytorch_model_tp_(0|[1-9][0-9]{0,8})_pp_(0|[1-9][0-9]{0,8})\.(bin|safetensors)")
OPTIMIZER_NAME = re.compile(r"optimizer_tp_(0|[1-9][0-9]{0,8})_pp_(0|[1-9][0-9]{0,8})\.bin")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Format(enum.Enum):
    """The kind of files that a checkpoint is written as."""

    BIN = "bin"
    SAFETENSORS = "safetensors"
    MEGATRON = "megatron"
    """Megatron-LM's legacy format: a folder for each rank."""
    TORCH_DIST = "torch_dist"
    """Megatron-LM's default: whole tensors, which it splits as it loads them."""


def format_file_size(num_bytes: int) -> str:
    """Write bytes as GiB, or in a smaller unit where that would show nothing.

    >>> format_file_size(3 * 2**29), format_file_size(5 * 2**20), format_file_size(1536), format_file_size(12)
    ('1.5 GiB', '5.0 MiB', '1.5 KiB', '12 bytes')
    """
    if num_bytes >= GIB / 20:
        return format_bytes(num_bytes)
    if num_bytes < 1024:
        return f"{num_bytes} bytes"
    return f"{num_bytes / MIB:.1f} MiB" if num_bytes >= MIB else f"{num_bytes / 1024:.1f} KiB"


def shard_name(tp: int, pp: int, extension: str) -> str:
    """Return the file name of one rank's shard.

    >>> shard_name(1, 0, "bin")
    'pytorch_model_tp_1_pp_0.bin'
    """
    return f"{PREFIX}{tp}_pp_{pp}.{extension}"


def optimizer_name(tp: int, pp: int) -> str:
    """Return the file name of one rank's optimizer state.

    >>> optimizer_name(1, 0)
    'optimizer_tp_1_pp_0.bin'
    """
    return f"optimizer_tp_{tp}_pp_{pp}.bin"


def refuse_file(path: Path, source: Path, *, force: bool) -> None:
    """Refuse a file that must not be written, before anything is read."""
    with explained(path):
        _refuse_place(path, source)
        if path.is_dir():
            raise UsageError(f"--output must be a file, but {path} is a folder", hint="give a file in it")
        if os.path.lexists(path):
            if not force:
                raise UsageError(f"--output {path} exists", hint="give another file, or --force to replace it")
            if not path.is_file():
                raise UsageError(f"--output {path} is no regular file", hint="give another one")


def refuse_folder(path: Path, source: Path, *, force: bool) -> None:
    """Refuse a folder that must not be written; only shards are ever replaced."""
    with explained(path):
        _refuse_place(path, source)
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise UsageError(f"--output must be a new folder, but {path} is something else", hint="give another one")
        held = sorted(each.name for each in path.iterdir()) if path.is_dir() else []
        others = [name for name in held if not (SHARD_NAME.fullmatch(name) or OPTIMIZER_NAME.fullmatch(name))]
        if others:
            raise UsageError(f"--output {path} holds {others[0]!r}, which is no shard", hint="give another folder")
        if held and not force:
            raise UsageError(f"--output {path} holds shards", hint="give another folder, or --force to replace them")


def _refuse_place(path: Path, source: Path) -> None:
    # Not Path.resolve(), which raises RuntimeError where links go round in a circle.
    here, there = Path(os.path.realpath(path)), Path(os.path.realpath(source))
    if here.is_relative_to(there):
        raise UsageError(f"--output {path} is in the checkpoint's own folder {source}", hint="give another place")
    if there.is_relative_to(here):
        raise UsageError(f"--output {path} holds the checkpoint's folder {source}", hint="give another place")
    if not here.parent.is_dir():
        raise UsageError(f"--output {path} cannot be written: {path.parent} is no folder; make it first")


def refuse_full_disk(path: Path, num_bytes: int) -> None:
    """Refuse what has no room, before hours are spent on it."""
    free = shutil.disk_usage(Path(os.path.realpath(path)).parent).free
    if num_bytes > free:
        problem = f"--output {path} needs {format_file_size(num_bytes)}, but the disk has {format_file_size(free)} left"
        raise DiskFullError(f"{problem}: nothing was written; free some or give another place")


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Say in one line why an output cannot be written."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise DiskFullError(f"no space left while writing {path}: nothing was left there; free some") from None
        raise UsageError(
            f"--output {path} cannot be written ({error.strerror or error})", hint="give another path"
        ) from None


@contextlib.contextmanager
def beside(path: Path) -> Iterator[Path]:
    """Yield a name next to a path, for a file or folder that is gone when the block ends unless it was moved."""
    temporary = path.parent / f".{path.name[:128]}.{secrets.token_hex(4)}.part"
    try:
        yield temporary
    finally:
        _remove(temporary)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def publish(temporary: Path, path: Path) -> None:
    """Put a whole file or folder of files in its place, in one step."""
    for written in [*temporary.rglob("*"), temporary]:
        _sync(written)
    if path.is_dir() and any(path.iterdir()):
        _exchange(temporary, path)
    else:
        temporary.replace(path)
    _sync(Path(os.path.realpath(path)).parent)


def _exchange(temporary: Path, path: Path) -> None:
    """Put a folder in the place of another, which comes back if that fails between two steps."""
    old = temporary.with_suffix(".old")
    try:
        path.rename(old)
        temporary.rename(path)
    except BaseException:
        if old.exists() and not path.exists():
            old.rename(path)
        raise
    _remove(old)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The outcome of a merge or a reshard."""

    source: str
    target: str
    paths: tuple[Path, ...]
    num_tensors: int
    num_layers: int
    num_bytes: int
    notes: tuple[str, ...]
    has_optimizer: bool = False
    """Whether the optimizer's state was carried too."""

    def lines(self, place: Path) -> list[str]:
        """Return what a person reads."""
        parts = f"{count(self.num_tensors, 'tensor')}, {count(self.num_layers, 'layer')}"
        size = format_file_size(self.num_bytes)
        return [f"{self.source} -> {self.target}: {parts}, {size}", *self.notes, f"written: {place}"]

    def as_object(self) -> dict[str, Any]:
        """Return what a program reads."""
        return {**asdict(self), "paths": [str(path) for path in self.paths]}
