"""A trial's log, read within bounds: a log is written by strangers and may be huge, torn or hostile."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from zenith_tune.study.faults import is_system_fault
from zenith_tune.study.files import open_regular
from zenith_tune.units import MIB

LINE_LENGTH = 300
"""What is shown of a line among others."""
WHOLE_LINE_LENGTH = 2500
"""What is shown of a line of a log: the numbers that matter stand at the end of Megatron's, which have 600 and more."""
_MAX_LINE_BYTES = 64 * 1024

# CSI and OSC sequences, then any other two-character escape.
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|\x1b.?")
# C0, C1, zero-width and text-direction characters, and halves of surrogate pairs: each can make a terminal lie.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]+")
# A log that was truncated while open begins with zeros.
_BLANK = "\x00 \t\r\n"


class TrialLog:
    """The log of one trial; what is no regular file that can be read is an empty log."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def text(self, limit_bytes: int = 32 * MIB) -> str:
        """Return the log with `\\n` line ends; of a log above the limit, its first quarter and last three quarters."""
        try:
            with open_regular(self.path) as file:
                data = _head_and_tail(file, limit_bytes)
        except OSError as error:
            if is_system_fault(error):
                raise
            return ""
        return _cut_long_lines(data).decode("utf-8", errors="replace")

    def tail_lines(self, count: int, limit: int = LINE_LENGTH) -> list[str]:
        """Return the last `count` lines that are not blank, fit to be shown, each of up to `limit` characters."""
        try:
            with open_regular(self.path) as file:
                size = _size(file)
                data = _one_line_end(_read(file, max(0, size - 256 * 1024), size))
        except OSError:
            return []
        # From the end: a log of many lines is asked for its last few.
        lines = (clean_line(line.decode("utf-8", errors="replace"), limit) for line in reversed(data.split(b"\n")))
        return list(itertools.islice(filter(None, lines), max(count, 0)))[::-1]


def clean_line(text: str, limit: int = LINE_LENGTH) -> str:
    """Return `text` as one line without escapes or control characters, shortened to `limit` characters.

    >>> clean_line("\\x1b[31mred\\x1b[0m\\tand\\nblack")
    'red and black'
    """
    # Cut first, so that a line of many megabytes costs nothing; escapes rarely outweigh the text sixteen to one.
    seen = _UNSEEN.sub(" ", without_escapes(text.lstrip(_BLANK)[: limit * 16]))
    line = " ".join(seen.split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def without_escapes(text: str) -> str:
    """Return `text` without the sequences that colour a terminal.

    >>> without_escapes("\\x1b]0;title\\x07\\x1b[1;31mred\\x1b[0m")
    'red'
    """
    return _ANSI.sub("", text) if "\x1b" in text else text


def printable(content: Any) -> Any:
    """Return a text, or JSON with texts, without what a terminal would act on: other people wrote it."""
    if isinstance(content, str):
        return _CONTROL.sub("", without_escapes(content)) if _CONTROL.search(content) else content
    if isinstance(content, dict):
        return {name: printable(each) for name, each in content.items()}
    return [printable(each) for each in content] if isinstance(content, list | tuple) else content


def lines_of(text: str) -> Iterator[str]:
    """Yield the lines that are not empty, one at a time, each cut to 64 KiB so that a regex stays quick."""
    start = 0
    while start < len(text):
        # A piece at a time: a list of all lines of a large log would outweigh the log many times.
        end = text.find("\n", start + MIB)
        end = len(text) if end < 0 else end
        for line in text[start:end].replace("\r", "\n").split("\n"):
            if line:
                yield line if len(line) <= _MAX_LINE_BYTES else _head_and_tail_of_text(line)
        start = end + 1


def _head_and_tail(file: BinaryIO, limit_bytes: int) -> bytes:
    size = _size(file)
    if size <= limit_bytes:
        return _one_line_end(_read(file, 0, size))
    head_bytes = limit_bytes // 4
    # Without the lines torn at the cut, which could show half a number as a whole one.
    head = _read(file, 0, head_bytes)
    head = head[: max(head.rfind(b"\n"), head.rfind(b"\r")) + 1] or head
    # One byte more, so that a tail that starts just behind a line end keeps its first line.
    tail = _read(file, size - (limit_bytes - head_bytes) - 1, size)
    tail = tail[line_end.end() :] if (line_end := re.search(rb"[\r\n]", tail)) else tail
    left_out = size - len(head) - len(tail)
    head, tail = _one_line_end(head), _one_line_end(tail)
    return b"%b\n[... %d bytes left out ...]\n%b" % (head.removesuffix(b"\n"), left_out, tail)


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _read(file: BinaryIO, start: int, end: int) -> bytes:
    file.seek(start)
    return file.read(end - start)


def _one_line_end(data: bytes) -> bytes:
    """Return `data` with a newline for every carriage return: a progress bar redraws itself with those."""
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in data else data


def _cut_long_lines(data: bytes) -> bytes:
    """Cut each line above 64 KiB to its head and tail; steps from newline to far newline, not line by line."""
    pieces: list[bytes] = []
    start = kept = 0
    while len(data) - start > _MAX_LINE_BYTES:
        newline = data.rfind(b"\n", start, start + _MAX_LINE_BYTES + 1)
        if newline >= 0:
            start = newline + 1
            continue
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        line, half = data[start:end], _MAX_LINE_BYTES // 2
        shortened = b"%b [... %d bytes left out ...] %b" % (line[:half], len(line) - 2 * half, line[-half:])
        pieces += [data[kept:start], shortened]
        start = kept = end
    return b"".join([*pieces, data[kept:]])


def _head_and_tail_of_text(line: str) -> str:
    half = _MAX_LINE_BYTES // 2
    return f"{line[:half]} [... {len(line) - 2 * half} characters left out ...] {line[-half:]}"
