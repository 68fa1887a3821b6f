"""A script that trains by a Trainer of Lightning, known by its text."""

from __future__ import annotations

import re

from zenith_tune.errors import UsageError
from zenith_tune.presets.shared.training_files import path_in_training_folder
from zenith_tune.presets.shared.trial_hook import starts_python
from zenith_tune.shell import ParsedCommand
from zenith_tune.study.files import read_regular

MAX_BYTES = 1 << 20
_IMPORT = re.compile(r"^\s*(?:import|from)\s+(?:pytorch_)?lightning\b", re.MULTILINE)
_TRAINER = re.compile(r"\b(?:Trainer|LightningCLI)\b")
_OTHER = re.compile(r"\b(?:Fabric|TrainingArguments)\b|^\s*(?:import|from)\s+nemo\b", re.MULTILINE)
"""What trains by another Trainer, or by one whose data has no batch size."""


def recognises(command: str) -> bool:
    """Return whether a command runs a Python file that imports Lightning and names its Trainer."""
    target = ParsedCommand.of(command).found_target
    if target is None or not starts_python(command):
        return False
    name = target.words[target.first - 1].value
    try:
        path = path_in_training_folder(command, name if name.endswith(".py") else f"{name.replace('.', '/')}.py")
        text = read_regular(path, MAX_BYTES).decode(errors="replace")
    except (OSError, UsageError):
        return False
    return bool(_IMPORT.search(text) and _TRAINER.search(text)) and not _OTHER.search(text)
