"""Which release of Megatron Core a folder holds, read from its package_info.py, which is never run."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from zenith_tune.shell.scripts.runs import ProgramRun
from zenith_tune.study.files import read_regular

Release = tuple[int, int]
OLDEST: Release = (0, 7)
NEWEST: Release = (0, 20)
"""The releases whose rules are known: those from the first to the second."""
PACKAGE_INFO = Path("megatron", "core", "package_info.py")
MAX_BYTES = 1 << 16
_NUMBER = re.compile(r"^(MAJOR|MINOR|PATCH)\b[^=\n]*=[ \t]*([0-9]{1,4})[ \t\r]*(?:#.*)?$", re.ASCII | re.MULTILINE)
_PRE_RELEASE = re.compile(r"^PRE_RELEASE\b[^=\n]*=[ \t]*['\"]([A-Za-z0-9]{1,20})['\"]", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronVersion:
    """A version, and the folder in which it was found."""

    major: int
    minor: int
    patch: int
    pre_release: str = ""
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}{self.pre_release}"

    @property
    def release(self) -> Release:
        """The release whose rules hold: what comes before a release may lack what is new in it."""
        return (self.major, self.minor - bool(self.pre_release and self.minor))


def find_version(folders: Iterable[Path]) -> MegatronVersion | None:
    """Return the version in the first of several folders that has Megatron Core, which is the one that Python imports.

    Where that one cannot be read the version is not known, whatever other folders hold.
    """
    tree = next((folder for folder in folders if _has_core(folder)), None)
    return None if tree is None else read_version(tree)


def _has_core(folder: Path) -> bool:
    """Return whether Python would import megatron.core from here; a folder without files is no package to it."""
    return any(os.path.lexists(folder / name) for name in (PACKAGE_INFO, PACKAGE_INFO.with_name("__init__.py")))


def read_version(folder: Path) -> MegatronVersion | None:
    """Return the version of the tree in a folder; None where there is none, or none that can be read."""
    try:
        source = read_regular(folder / PACKAGE_INFO, MAX_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return None
    numbers = {name.lower(): int(number) for name, number in _NUMBER.findall(source)}
    if len(numbers) < 3:
        return None
    label = _PRE_RELEASE.search(source)
    return MegatronVersion(**numbers, pre_release=label[1] if label else "", folder=folder)


PYTHONS = re.compile(r"python[0-9.]*|torchrun|megatron")
"""Programs of the environment whose packages a run uses, ms-swift's own among them."""
PACKAGES = ("site-packages", "dist-packages")
MAX_ENTRIES = 64
_UNKNOWN = re.compile(r"[$`{\0]")


def megatron_version(run: ProgramRun, environment: Mapping[str, str] | None = None) -> MegatronVersion | None:
    """Return the version that a run uses, or None where no tree of it can be found."""
    return find_version(_folders(run, os.environ if environment is None else environment))


def _folders(run: ProgramRun, environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders in the order of Python's own path: the script's, PYTHONPATH's, those of installed packages."""
    if (program := _placed(run.program, run.folder)) is not None:
        yield Path(os.path.realpath(program)).parent
    if path := run.variables.get("PYTHONPATH", environment.get("PYTHONPATH", "")):
        entries = (_placed(entry, run.folder) for entry in path.split(os.pathsep)[:MAX_ENTRIES])
        yield from (entry for entry in entries if entry is not None)
    parts = (*run.launcher, run.program)
    python = next((part for part in parts if PYTHONS.fullmatch(part.rpartition("/")[2])), None)
    if python is not None and (start := _started(python, run, environment)) is not None:
        # A link to another Python is not followed: an environment's packages are next to the link.
        for packages in PACKAGES:
            yield from sorted(start.parent.parent.glob(f"lib/python3*/{packages}"))


def _started(python: str, run: ProgramRun, environment: Mapping[str, str]) -> Path | None:
    if "/" in python:
        return _placed(python, run.folder)
    found = shutil.which(python, path=run.variables.get("PATH", environment.get("PATH", "")))
    return None if found is None else Path(found)


def _placed(name: str, folder: Path | None) -> Path | None:
    """Return a path as the run sees it; None where only a shell knows it."""
    if _UNKNOWN.search(name):
        return None
    try:
        path = Path(name).expanduser()
    except RuntimeError:
        return None
    return path if path.is_absolute() else None if folder is None else folder / path
