"""How a trial's process gets its hooks, and how the lines that they write are read back."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zenith_tune.study.trial_log import lines_of

HOOK_FOLDER = "hook"
HOOK_PATH = f"{{trial_folder}}/{HOOK_FOLDER}"
"""What a trial's PYTHONPATH begins with."""
SETTINGS = "hooks.json"
PACKAGE = "zenithtune_hooks"
_HERE = Path(__file__).parent
# Hooks of studies before 0.2 wrote the longer prefix.
_LINE = re.compile(r"zenithtune(?:-accelerate)?: (\{.*)")


def hook_files(hooks: Mapping[str, Any], *needed: str, folder: str = HOOK_FOLDER) -> dict[str, str]:
    """Return the files that start hooks, by their names and settings; `needed` are other modules that they import."""
    of_trials = ("stages",) if folder == HOOK_FOLDER else ()
    modules = {"__init__": "", **{name: _source(name) for name in ("process", *of_trials, *hooks, *needed)}}
    return {
        f"{folder}/sitecustomize.py": _source("sitecustomize"),
        f"{folder}/{SETTINGS}": json.dumps(hooks, indent=2) + "\n",
        **{f"{folder}/{PACKAGE}/{name}.py": text for name, text in modules.items()},
    }


def with_hook(files: Mapping[str, str], name: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the files of a trial with those of one more hook."""
    hooks = json.loads(files.get(f"{HOOK_FOLDER}/{SETTINGS}", "{}"))
    return {**files, **hook_files({**hooks, name: settings})}


@functools.cache
def _source(name: str) -> str:
    return (_HERE / f"{name}.py").read_text(encoding="utf-8")


def without_code(files: Mapping[str, str]) -> dict[str, str]:
    """Return the files of a trial without the code of its hooks, which changes nothing of what is trained."""
    is_code = re.compile(rf"(^|/)({PACKAGE}/.*|sitecustomize)\.py$")
    return {name: text for name, text in files.items() if not is_code.search(name)}


def hook_events(log: str) -> list[dict[str, Any]]:
    """Return what the hooks of a trial wrote into its log.

    >>> hook_events('[rank0]: zenithtune: {"event": "step", "step": 1}')
    [{'event': 'step', 'step': 1}]
    """
    found = []
    for match in filter(None, map(_LINE.search, lines_of(log))):
        try:
            event = json.loads(match[1])
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            found.append(event)
    return found


def start_seconds(log: str) -> dict[str, float]:
    """Return what the stages of a trial's start took, by the first line of its hooks about it; empty without one.

    >>> start_seconds('zenithtune: {"event": "start", "seconds": {"imports": 8.6, "first_step": 0.1}}')
    {'imports': 8.6, 'first_step': 0.1}
    """
    seconds = next((event.get("seconds") for event in hook_events(log) if event.get("event") == "start"), None)
    pairs = seconds.items() if isinstance(seconds, dict) else ()
    return {name: float(value) for name, value in pairs if type(value) in (int, float)}


def start_line(seconds: Mapping[str, float]) -> str:
    """Return the stages of a start in a few words.

    >>> start_line({"imports": 8.6, "building": 14, "first_step": 8.1})
    '31 s: imports 9, building 14, first step 8'
    """
    stages = ", ".join(f"{name.replace('_', ' ')} {value:.0f}" for name, value in seconds.items() if value >= 0.5)
    return f"{sum(seconds.values()):.0f} s" + (f": {stages}" if stages else "")
