"""How much of a shell script is read before it counts as unreadable: a reader must always end."""

from __future__ import annotations

import re
from dataclasses import dataclass

from zenith_tune.errors import CommandError

MAX_BYTES = 1 << 18
MAX_COMMANDS = 20_000
MAX_EXPANDED = 1 << 24
MAX_VALUE = 1 << 16
"""Longer values are no training script's: a variable that grows beyond counts as unknown."""
COMMANDS_PER_TEXT = 20
"""What opening a script takes, in commands."""
_TOO_MANY = f"its scripts come to more than {MAX_COMMANDS} commands"
_LONG_WORD = re.compile(r"\S{16384}")


@dataclass(slots=True)
class Budget:
    """Hold what is left for one command and all the scripts that it leads to.

    >>> budget = Budget(num_commands=1)
    >>> budget.take_command()
    >>> budget.take_command()
    Traceback (most recent call last):
    zenith_tune.errors.CommandError: its scripts come to more than 20000 commands
    """

    num_bytes: int = MAX_BYTES
    num_commands: int = MAX_COMMANDS
    num_expanded: int = MAX_EXPANDED
    reason: str = ""
    """Why something was not read; empty where all was."""

    def take_text(self, text: str) -> None:
        """Take a text that is to be read; one word of very many letters is no script."""
        self.num_bytes -= len(text)
        self.num_commands -= COMMANDS_PER_TEXT
        if self.num_bytes < 0:
            raise self.refusal(f"its scripts come to more than {MAX_BYTES >> 10} KiB")
        if self.num_commands < 0:
            raise self.refusal(_TOO_MANY)
        if _LONG_WORD.search(text):
            raise self.refusal("a script has a word of more than 16,000 letters")

    def take_command(self) -> None:
        """Take one command that is gone through."""
        self.num_commands -= 1
        if self.num_commands < 0:
            raise self.refusal(_TOO_MANY)

    def take_expanded(self, length: int) -> None:
        """Take letters that variables were replaced by."""
        self.num_expanded -= length
        if self.num_expanded < 0:
            raise self.refusal(f"its variables come to more than {MAX_EXPANDED >> 20} MiB")

    def refusal(self, reason: str) -> CommandError:
        """Note why nothing more is read, and return the error that ends the reading."""
        self.reason = self.reason or reason
        return CommandError(reason)
