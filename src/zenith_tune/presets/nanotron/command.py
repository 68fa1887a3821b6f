"""A command that trains with nanotron, known by the YAML that its --config-file names."""

from __future__ import annotations

from zenith_tune.errors import UsageError
from zenith_tune.presets.shared.config_file import ConfigFile, config_files
from zenith_tune.shell import ParsedCommand

OPTION = "--config-file"
_MARK = "batch_accumulation_per_replica:"
"""A key that no other framework has."""


def recognises(command: str) -> bool:
    """Return whether a command names a configuration of nanotron."""
    return find_config(command) is not None


def find_config(command: str) -> ConfigFile | None:
    """Return the configuration that a command names; None where it names none of nanotron's."""
    try:
        path = ParsedCommand.of(command).get(OPTION)
        found = (file for file in config_files(command) if file.path == path)
        return next((file for file in found if _MARK in file.text), None) if path else None
    except UsageError:
        return None
