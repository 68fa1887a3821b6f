"""The sequence length of a training run, as its command or its log tells it.

Megatron-LM dumps its arguments as a table of `  seq_length ...... 4096`; ms-swift calls the length max_length, and
dumps its arguments as `max_length=4096` within one long line.
"""

from __future__ import annotations

import re

from zenith_tune.errors import CommandError
from zenith_tune.shell import CommandLine

SEQUENCE_OPTIONS = ("--seq-length", "--max-length")
"""How Megatron-LM and ms-swift spell the sequence length."""

_DUMPED = (
    re.compile(r"(?<![\w.])seq_length \.{1,120} (\d{1,9})(?!\w)"),
    re.compile(r"(?<![\w.])max_length(?: \.{1,120} |=)(\d{1,9})(?!\w)"),
)


def sequence_in_command(command: str) -> int | None:
    """Return the length that a command itself says, or None.

    >>> sequence_in_command("megatron sft --max_length 4096"), sequence_in_command("bash train.sh")
    (4096, None)
    """
    try:
        line = CommandLine(command)
        said = next((value for name in SEQUENCE_OPTIONS if (value := line.get(name)) is not None), None)
    except CommandError:
        return None
    return _length(said)


def sequence_in_log(log: str) -> int | None:
    """Return the length in the arguments that a log dumps, or None.

    >>> sequence_in_log("  encoder_seq_length .... 8\\n  seq_length .... 4096\\n")
    4096
    """
    found = (pattern.search(log) for pattern in _DUMPED)
    return next((length for match in found if match and (length := _length(match[1]))), None)


def _length(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 10 and int(text) > 0 else None
