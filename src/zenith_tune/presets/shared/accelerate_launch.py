"""The `accelerate launch` inside a command: its options, its backend, and the same command with a trial's own file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zenith_tune.errors import CommandError, UsageError
from zenith_tune.presets.shared.accelerate_settings import (
    BACKEND_SWITCHES,
    ONLY_AS_OPTIONS,
    SECTION_OF,
    TOP,
    AccelerateSettings,
    option_value,
    read_settings,
)
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.rank_launcher import ACCELERATE, LauncherOption

PRESET = "preset accelerate"
FILE_NAME = "accelerate_config.yaml"
TRIAL_PATH = f"{{trial_folder}}/{FILE_NAME}"
"""Where a trial's own configuration lies; the tuner fills the folder in."""
MEGATRON_LM, DEEPSPEED_TYPE, FSDP_TYPE, PLAIN_TYPE = "MEGATRON_LM", "DEEPSPEED", "FSDP", "PLAIN"
KEPT_IN_FILE = {*SECTION_OF, *TOP, *BACKEND_SWITCHES, "use_parallelism_config"} - ONLY_AS_OPTIONS


class Launch:
    """The launcher's options by their names with underscores, and the same command with a trial's own file.

    >>> launch = Launch("srun accelerate launch --zero_stage=2 train.py --lr 1")
    >>> launch.values
    {'zero_stage': '2'}
    >>> launch.written()
    'srun accelerate launch --config_file {trial_folder}/accelerate_config.yaml train.py --lr 1'
    """

    def __init__(self, command: str) -> None:
        parsed = ParsedCommand.of(command)
        launcher = parsed.launcher if parsed.target else None  # says what is wrong where there is no target
        if launcher is None or launcher.kind != ACCELERATE:
            problem = f"{PRESET} reads its job from `accelerate launch`, but the command starts something else"
            hint = "choose another --preset, or write `accelerate launch` where it can be seen"
            raise CommandError(problem, hint=hint)
        self._command, self._launcher = command, launcher
        known = [each for each in launcher.options if each.is_static]
        self.values = {_key(each): True if each.value is None else each.value for each in known}
        """What the options say, the last of a name; those aside whose value only the shell knows."""
        self.unknown_names = {_key(each) for each in launcher.options if not each.is_static}
        """The options whose value only the shell knows."""

    def written(self, more_options: Mapping[str, str] | None = None, variables: Mapping[str, str] | None = None) -> str:
        """Return the command with the trial's own file in place of what the file says; then `variables` and options."""
        # What the file says as well has to go: it would win over the file.
        gone = [each.name for each in self._launcher.options if each.is_static and _key(each) in KEPT_IN_FILE]
        options = {"config_file": TRIAL_PATH, **(more_options or {})}
        named = {f"--{name}": value for name, value in options.items()}
        return self._launcher.with_options(named, without=gone, variables=variables)


def _key(option: LauncherOption) -> str:
    return option.name.lstrip("-").replace("-", "_")


def launched_backend(command: str) -> str | None:
    """Return which backend an `accelerate launch` runs by its file and options; None where that is not known."""
    try:
        launch = Launch(command)
        return chosen_backend(merged_settings(launch), launch)[0]
    except UsageError:
        return None


def merged_settings(launch: Launch) -> AccelerateSettings:
    """Return what the file says, with the launcher's options in its place where both speak."""
    options = dict(launch.values)
    named = options.pop("config_file", None)
    path = Path(str(named)) if named is not None else _default_file()
    if str(named) == TRIAL_PATH:
        path = None
    settings = read_settings(path) if path is not None else AccelerateSettings(source="the launcher's options")
    changes: dict[str, Any] = {}
    for name, value in options.items():
        if (name in SECTION_OF or name in TOP) and name not in BACKEND_SWITCHES and name not in ONLY_AS_OPTIONS:
            changes[name] = value if isinstance(value, bool) else option_value(value)
    # The launcher's own values of a precision are no booleans.
    if options.get("mixed_precision") == "no":
        changes["mixed_precision"] = "no"
    return settings.having(changes)


def _default_file() -> Path | None:
    """Return the file that `accelerate config` wrote, which the launcher takes where none is named."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = Path(os.environ.get("HF_HOME") or f"{cache}/huggingface").expanduser()
    path = home / "accelerate" / "default_config.yaml"
    return path if path.is_file() else None


def chosen_backend(settings: AccelerateSettings, launch: Launch) -> tuple[str, AccelerateSettings]:
    """Return which backend runs, and the settings with its name: a switch of the command wins over the file."""
    chosen = [kind for switch, kind in BACKEND_SWITCHES.items() if switch in launch.values]
    kind = chosen[0] if chosen else str(settings.get("distributed_type") or "MULTI_GPU").upper()
    settings = settings.having({"distributed_type": kind, **({"use_cpu": True} if "cpu" in launch.values else {})})
    if kind == FSDP_TYPE and (settings.whole("fsdp_version") or 1) != 2:
        problem = f"{PRESET} tunes FSDP version 2, but {settings.source} has version 1"
        raise UsageError(f"{problem}: convert it by `accelerate to-fsdp2`, or give --fsdp_version 2")
    if kind in (MEGATRON_LM, DEEPSPEED_TYPE, FSDP_TYPE):
        return kind, settings
    if kind == "NO" or kind.startswith("MULTI_"):
        return PLAIN_TYPE, settings
    problem = (
        f"{PRESET} tunes MEGATRON_LM, DEEPSPEED, FSDP and plain data parallelism, but {settings.source} has {kind}"
    )
    raise UsageError(problem, hint="choose another distributed_type")
