"""One run of a Megatron-LM pretrain script, as a command and the scripts behind it come down to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PROGRAM = re.compile(r"(?:^|/)pretrain_(\w+)\.py$", re.ASCII)
MODULE = re.compile(r"(?:^|\.)pretrain_(\w+)$", re.ASCII)
"""The same script as a module, behind -m."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainRun:
    """Hold one run of a pretrain script, its variables put in."""

    launcher: tuple[str, ...]
    """The words in front of the script, such as torchrun and its options."""
    program: str
    arguments: tuple[str, ...]
    added_at: int | None = None
    """Where among the arguments those arrive that are added to the command; None where they do not."""
    script: str = ""
    """The shell script that runs it; empty where the command itself does."""
    variables: Mapping[str, str]
    """What is set in front of it."""
    folder: Path | None = None
    """Where it runs, seen from here; None where only a shell knows."""
    extended: tuple[str, ...] = ()
    """Lists that a condition which cannot be followed may have made longer."""
    is_guarded: bool = False
    """Whether a condition that cannot be followed decides if it runs."""

    @property
    def kind(self) -> str:
        """Return what the script trains, such as gpt."""
        match = PROGRAM.search(self.program) or MODULE.search(self.program)
        return match[1] if match else ""
