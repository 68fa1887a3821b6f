"""The options that a command gives to Megatron-LM, by their kind: counts, words and switches."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from zenith_tune.command_line import CommandLine
from zenith_tune.errors import UsageError

_PLACEHOLDER = re.compile(r"\{[A-Za-z_]\w*\}")


@dataclass(frozen=True, slots=True)
class MegatronArgs:
    """Read options in either spelling; an option that holds a placeholder such as {tp} counts as not given.

    >>> args = MegatronArgs.of(["--num-layers", "16", "--micro_batch_size={mbs}", "--bf16"])
    >>> args.count("--num-layers"), args.count("--micro-batch-size"), args.has("--bf16")
    (16, None, True)
    """

    line: CommandLine

    @classmethod
    def of(cls, words: Sequence[str]) -> MegatronArgs:
        """Read the words that follow a pretrain script."""
        return cls(CommandLine.from_argv(["python", "pretrain_gpt.py", *words]))

    def has(self, option: str) -> bool:
        """Tell whether the option is there."""
        return self.line.has(option)

    def first(self, *options: str) -> str | None:
        """Return the first of several options that is there."""
        return next((option for option in options if self.has(option)), None)

    def text(self, option: str) -> str | None:
        """Return an option's value as it is written."""
        value = self.line.get(option)
        return None if value is None or _PLACEHOLDER.fullmatch(value) else value

    def count(self, option: str, *, least: int = 1) -> int | None:
        """Return an option's value as a whole number; what only a shell could work out is refused."""
        text = self.text(option)
        if text is None:
            return None
        try:
            number = int(text)
        except ValueError:
            law = f"{option} must be a whole number for a plan to be made"
            raise UsageError(f"{law}, but is {text!r}: write the number in its place") from None
        if number < least:
            raise UsageError(f"{option} must be at least {least}, but is {number}: correct it in the command")
        return number
