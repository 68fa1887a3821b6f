"""The options that a command gives to Megatron-LM, by their kind: counts, words and switches."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from zenith_tune.errors import UsageError
from zenith_tune.shell import CommandLine

MOST = 10_000_000
MOST_OF = {
    "--num-layers": 10_000,
    "--encoder-num-layers": 10_000,
    "--hidden-size": 1_000_000,
    "--num-attention-heads": 100_000,
    "--seq-length": 100_000_000,
    "--encoder-seq-length": 100_000_000,
    "--max-position-embeddings": 100_000_000,
}
"""Larger than any model or job has: a slip of the keyboard must not be planned for hours."""
MOST_DIGITS = 18
SHOWN = 40
_PLACEHOLDER = re.compile(r"\{[A-Za-z_]\w*\}")
_WHOLE = re.compile(rf"[0-9]{{1,{MOST_DIGITS}}}")


def whole(text: str) -> int | None:
    """Return the whole number that a text is, or None; other digits than ASCII's, and very many of them, are none.

    >>> whole("16"), whole("-1"), whole("\u00b2"), whole("9" * 5000)
    (16, None, None, None)
    """
    return int(text) if _WHOLE.fullmatch(text) else None


def shown(text: str) -> str:
    """Return a value as a message shows it: in quotes, and not longer than a line has room for."""
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")


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
            raise UsageError(f"{law}, but is {shown(text)}: write the number in its place") from None
        if number < least:
            raise UsageError(f"{option} must be at least {least}, but is {number}: correct it in the command")
        if number > (most := MOST_OF.get(option, MOST)):
            law = f"{option} must be at most {most}, but is {shown(text)[1:-1]}"
            raise UsageError(f"{law}: correct it in the command")
        return number
