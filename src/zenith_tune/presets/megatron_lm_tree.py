"""The Megatron-LM tree that a run of a pretrain script uses: where its Python would find megatron.core."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from zenith_tune.describe.megatron.version import MegatronVersion, find_version
from zenith_tune.presets.megatron_lm_run import PretrainRun

PYTHONS = re.compile(r"python[0-9.]*|torchrun")
PACKAGES = ("site-packages", "dist-packages")
MAX_ENTRIES = 64
_UNKNOWN = re.compile(r"[$`{\0]")


def megatron_version(run: PretrainRun, environment: Mapping[str, str] | None = None) -> MegatronVersion | None:
    """Return the version that a run uses, or None where no tree of it can be found."""
    return find_version(_folders(run, os.environ if environment is None else environment))


def _folders(run: PretrainRun, environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders in the order of Python's own path: the script's, PYTHONPATH's, those of installed packages."""
    if (program := _placed(run.program, run.folder)) is not None:
        yield Path(os.path.realpath(program)).parent
    if path := run.variables.get("PYTHONPATH", environment.get("PYTHONPATH", "")):
        entries = (_placed(entry, run.folder) for entry in path.split(os.pathsep)[:MAX_ENTRIES])
        yield from (entry for entry in entries if entry is not None)
    python = next((word for word in run.launcher if PYTHONS.fullmatch(word.rpartition("/")[2])), None)
    if python is not None and (start := _started(python, run, environment)) is not None:
        # A link to another Python is not followed: an environment's packages are beside the link.
        for packages in PACKAGES:
            yield from sorted(start.parent.parent.glob(f"lib/python3*/{packages}"))


def _started(python: str, run: PretrainRun, environment: Mapping[str, str]) -> Path | None:
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
