"""Rows of trials for a terminal of any width: what does not fit behind the columns takes lines of its own."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

NAMES = ("trial", "layout", "state", "iter", "value", "memory", "time")
RIGHT = ("iter", "value", "memory", "time")
LEAST = {"layout": 12, "iter": 4, "value": 6, "memory": 8, "time": 6}
MOST = {"layout": 40, "state": 24}
GAPS = (2, 1)
"""Between columns; the narrow one where the terminal is."""
MAX_LINES = 3
"""More is not said of one trial among many; the summary has all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenRow:
    """Hold the cells of a trial, and why it runs or how it went."""

    cells: tuple[str, ...]
    """One for each of NAMES."""
    style: str = ""
    """Of the state."""
    rest: str = ""


@dataclass(frozen=True, slots=True)
class Shape:
    """Hold the width of each column, and what is left behind them."""

    widths: tuple[int, ...]
    room: int
    gap: str

    @property
    def indent(self) -> int:
        """Where a line of its own begins: under the layout."""
        return self.widths[0] + len(self.gap)

    def holds(self, row: ScreenRow) -> bool:
        """Tell whether a row takes one line."""
        return len(row.rest) <= self.room


def shape_of(rows: Sequence[ScreenRow], width: int) -> Shape:
    """Return the columns for a terminal; the layout gives way where it is narrow, and goes on below."""
    widths = [
        min(max([len(name), LEAST.get(name, 0), *(len(row.cells[column]) for row in rows)]), MOST.get(name, width))
        for column, name in enumerate(NAMES)
    ]
    gap = next((gap for gap in GAPS if sum(widths) + gap * (len(NAMES) - 1) <= width), GAPS[-1])
    over = sum(widths) + gap * (len(NAMES) - 1) - width
    for name in ("layout", "state"):
        column = NAMES.index(name)
        given = min(max(over, 0), max(widths[column] - LEAST.get(name, 9), 0))
        widths[column] -= given
        over -= given
    return Shape(tuple(widths), max(-over - gap, 0), " " * gap)


def head_line(shape: Shape) -> Text:
    """Return the names of the columns."""
    return _cells(NAMES, shape, "bold")


def row_lines(row: ScreenRow, shape: Shape, width: int) -> list[Text]:
    """Return a trial: its cells, then what is to say of it, behind them where it fits and else below."""
    first = _cells(row.cells, shape, "", row.style)
    label, most = row.cells[1], shape.widths[1]
    parts = [label] if len(label) > most else []
    if row.rest and shape.holds(row) and not parts:
        return [first.append(f"{shape.gap}{row.rest}")]
    parts += [row.rest] if row.rest else []
    below = textwrap.wrap(": ".join(parts), max(width - shape.indent, 20), max_lines=MAX_LINES, placeholder=" …")
    return [first, *(Text(" " * shape.indent + line, style="dim") for line in below)]


def _cells(cells: Sequence[str], shape: Shape, style: str, state_style: str = "") -> Text:
    line = Text(style=style)
    for name, cell, width in zip(NAMES, cells, shape.widths, strict=True):
        shown = cell if len(cell) <= width else cell[: width - 1] + "…"
        line.append(shown.rjust(width) if name in RIGHT else shown.ljust(width), state_style if name == "state" else "")
        line.append(shape.gap if name != NAMES[-1] else "")
    return line
