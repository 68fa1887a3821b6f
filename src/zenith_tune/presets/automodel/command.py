"""A command that trains by a recipe of NeMo Automodel, known by the YAML that it names."""

from __future__ import annotations

from zenith_tune.errors import UsageError
from zenith_tune.presets.shared.config_file import ConfigFile, config_files

_MARKS = ("step_scheduler:", "local_batch_size:")


def recognises(command: str) -> bool:
    """Return whether a command names a recipe of NeMo Automodel."""
    return find_recipe(command) is not None


def find_recipe(command: str) -> ConfigFile | None:
    """Return the YAML of the recipe that a command names; None where it names none."""
    try:
        files = config_files(command)
    except UsageError:
        return None
    return next((file for file in files if all(mark in file.text for mark in _MARKS)), None)
