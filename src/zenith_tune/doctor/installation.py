"""What is installed where ZenithTune runs, for bug reports: its parts, frameworks, engines, and what is missing."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib import metadata

from zenith_tune import __version__
from zenith_tune.describe.machine import listed_gpus, nvidia_smi
from zenith_tune.errors import UsageError

FRAMEWORKS = (
    *("torch", "megatron-core", "megatron-bridge", "ms-swift", "transformers", "trl", "accelerate", "deepspeed"),
    *("torchtitan", "lightning", "llamafactory", "axolotl", "nemo-automodel", "nanotron", "verl", "nemo-rl"),
)
ENGINES = {
    "local": "bash",
    "GPUs": "nvidia-smi",
    "hosts": "ssh",
    "slurm": "sbatch",
    "ray": "ray",
    "kubernetes": "zenith-kubernetes",
}
"""Where trials run, and the program or the package that each needs."""
_OF_DEVELOPERS = frozenset({"dev", "docs", "engines", "test"})
_EXTRA = re.compile(r"([\w.-]+).*extra\s*==\s*['\"]([\w-]+)['\"]")


def installation_lines() -> Iterator[str]:
    """Yield what is installed here, one line each.

    >>> next(installation_lines()).startswith("zenith-tune ")
    True
    """
    yield f"zenith-tune {__version__}, Python {platform.python_version()} ({sys.executable})"
    yield f"machine:    {platform.platform()}, {os.cpu_count()} CPUs, {_gpus()}"
    yield from _here_and_not("frameworks", {name: _version(name) for name in FRAMEWORKS})
    engines = {name: shutil.which(need) or _version(need) for name, need in ENGINES.items()}
    named = {name if found else f"{name} (needs {ENGINES[name]})": found for name, found in engines.items()}
    yield from _here_and_not("engines", named)
    complete = {extra: "complete" * all(map(_version, names)) for extra, names in _extras().items()}
    yield from _here_and_not("extras", complete, hint=", each by pip install 'zenith-tune[NAME]'")


def installed_versions() -> dict[str, str]:
    """Return the version of Python, of this package and of the frameworks that are here."""
    found = {"zenith-tune": __version__, "python": platform.python_version()}
    return found | {name: version for name in FRAMEWORKS if (version := _version(name))}


def _here_and_not(what: str, found: Mapping[str, str], hint: str = "") -> Iterator[str]:
    here = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    missing = ", ".join(name for name, version in found.items() if not version)
    yield f"{f'{what}:':<12}{here or 'none'}"
    if missing:
        yield f"{'':<12}not here: {missing}{hint}"


def _extras() -> dict[str, list[str]]:
    """Return the packages of each extra that users may want."""
    found: dict[str, list[str]] = defaultdict(list)
    for requirement in metadata.requires("zenith-tune") or () if _version("zenith-tune") else ():
        if (match := _EXTRA.match(requirement)) and match[2] not in _OF_DEVELOPERS:
            found[match[2]].append(match[1])
    return dict(sorted(found.items()))


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _gpus() -> str:
    try:
        names = listed_gpus(nvidia_smi("-L", timeout_s=10.0))
    except UsageError:
        return "no GPU that nvidia-smi shows"
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "no GPU that nvidia-smi shows"
