"""A strategy's closing table as plain lines that fit a terminal: wide heads break, the last column goes on below."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from zenith_tune.strategies.findings import Findings

GAP = "  "
LEAST_LAST = 24
"""Where less than this is left for the last column, it stands on lines of its own."""
INDENT = 4


def findings_lines(findings: Findings, width: int) -> list[str]:
    """Return title, head and rows, each within `width`; the strategy's notes come after, as they are."""
    *heads, last = findings.columns
    widths = [
        max(*(len(word) for word in head.split()), *(len(row[column]) for row in findings.rows), 0)
        for column, head in enumerate(heads)
    ]
    used = sum(widths) + len(GAP) * len(widths)
    is_below = width - used < LEAST_LAST
    lines = [f"{findings.title}:", *_head(heads, last, widths, is_below=is_below)]
    for row in findings.rows:
        cells = GAP.join(cell.rjust(size) for cell, size in zip(row, widths, strict=False))
        indent = INDENT if is_below else used
        told = textwrap.wrap(row[-1], max(width - indent, LEAST_LAST), break_on_hyphens=False) or [""]
        if is_below:
            lines += [cells, *(" " * indent + line for line in told if line)]
        else:
            lines += [f"{cells}{GAP}{told[0]}".rstrip(), *(" " * indent + line for line in told[1:])]
    return [*lines, *findings.lines]


def _head(heads: Sequence[str], last: str, widths: Sequence[int], *, is_below: bool) -> Iterator[str]:
    """Yield the heads, broken between words where a column is narrower than its name."""
    broken = [textwrap.wrap(head, size) for head, size in zip(heads, widths, strict=True)]
    height = max((len(lines) for lines in broken), default=1)
    for index in range(height):
        cells = []
        for lines, size in zip(broken, widths, strict=True):
            at = index - (height - len(lines))
            cells.append((lines[at] if at >= 0 else "").rjust(size))
        tail = [last] if index == height - 1 and not is_below else []
        yield GAP.join([*cells, *tail]).rstrip()
    if is_below:
        yield " " * INDENT + last
