"""Finds out before the first trial what would fail every one of them."""

from __future__ import annotations

import shutil
from pathlib import Path

from zenith_tune.errors import UsageError
from zenith_tune.presets.base import TuningPreset
from zenith_tune.shell import CommandLine
from zenith_tune.shell.placeholders import fill_placeholders, misspelt_placeholder

TRIAL_FOLDER = "trial_folder"


def own_placeholders(preset: TuningPreset) -> set[str]:
    """Return the names that a command may hold in braces."""
    return {*preset.placeholder_names(), TRIAL_FOLDER}


def check_command(preset: TuningPreset, command: str, folder: Path) -> None:
    """Refuse a command that holds a placeholder nobody fills, or that options find no place in."""
    first = {name: parameter.grid(1)[0] for name, parameter in preset.get_search_space().items()}
    if (misspelt := misspelt_placeholder(command, own_placeholders(preset))) is not None:
        name, meant = misspelt
        raise UsageError(f"unknown placeholder {{{name}}}; did you mean {{{meant}}}?")
    fill_placeholders(preset.apply_parameters(command, first), {TRIAL_FOLDER: str(folder)})


def check_program(line: CommandLine) -> None:
    """Refuse a command whose program is not there."""
    program = line.program
    if program is not None and "{" not in program and shutil.which(program) is None:
        raise UsageError(f"the program {program!r} of the training command does not exist or is not executable")
