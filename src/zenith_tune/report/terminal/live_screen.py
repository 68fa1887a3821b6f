"""What a terminal shows while a study runs: the last trials, those that run, the best so far and the time left."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from zenith_tune.report.terminal.running import ConsoleReporter, RunningTrial
from zenith_tune.report.terminal.trial_table import STYLES
from zenith_tune.report.trial_row import TrialRow
from zenith_tune.study.study import Study
from zenith_tune.study.trial import YOUR_COMMAND, Trial
from zenith_tune.units import format_seconds, format_value

NAMES = ("trial", "layout", "state", "iter", "value", "memory", "time")
RIGHT = ("iter", "value", "memory", "time")
LEAST = {"layout": 12, "iter": 4, "value": 6, "memory": 8, "time": 6}
MOST = {"layout": 40, "state": 24}
GAPS = (2, 1)
"""Blanks between columns, on a wide and on a narrow terminal."""
MAX_LINES = 3
"""More is not said of one trial among many; the summary has all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenRow:
    """The cells of a trial, and why it runs or how it went."""

    cells: Sequence[str]
    style: str
    rest: str


@dataclass(frozen=True, slots=True)
class Shape:
    """The width of each column, and the room behind them."""

    widths: tuple[int, ...]
    room: int
    gap: str

    @property
    def indent(self) -> int:
        """Where a line of its own begins: under the layout."""
        return self.widths[0] + len(self.gap)


def shape_of(rows: Sequence[ScreenRow], width: int) -> Shape:
    """Return the columns for a terminal; the layout gives way where it is narrow, and continues below."""
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


def row_lines(row: ScreenRow, shape: Shape, width: int) -> list[Text]:
    """Return a trial: its cells, then what is to say of it, behind them where it fits and else below."""
    first = _cells(row.cells, shape, "", row.style)
    label, most = row.cells[1], shape.widths[1]
    parts = [label] if len(label) > most else []
    if row.rest and len(row.rest) <= shape.room and not parts:
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


_ROWS = 10
_MARGIN = 2
"""Lines of the terminal that are left alone, so that what is drawn never scrolls away."""


class LiveScreen(ConsoleReporter):
    """The content of the screen; drawn by another thread while trials come and go."""

    _recent: Sequence[tuple[Trial, str]] = ()

    def trial_finished(self, trial: Trial, label: str, study: Study) -> None:
        super().trial_finished(trial, label, study)
        self._recent = [*self._recent, (trial, label)][-_ROWS:]

    def status(self) -> str:
        """Say how far the study is: best so far, trials done, time left."""
        if self.study is None:
            return ""
        best = self.study.fastest
        parts = []
        if best is not None and best.value is not None:
            who = "your command" if best.is_baseline else f"trial {self.study.name_of(best)}"
            parts.append(f"best {format_value(best.value)} ({who})")
        return ", ".join([*parts, *self.how_far()]) or "no value yet"

    def draw(self) -> DrawnTrials:
        ended, study = [], self.study
        for trial, label in list(self._recent) if study is not None else ():
            assert study is not None
            rest = (trial.early or trial.why) if trial.value is not None else trial.cause or ""
            cells = TrialRow.of_trial(trial, label, study).cells(*NAMES)
            ended.append(ScreenRow(cells=cells, style=STYLES.get(trial.outcome, ""), rest=rest))
        running = [_running_row(running) for running in list(self.running.values())]
        return DrawnTrials(ended, running, f"{self.bar()} {self.status()}".strip())


def _running_row(running: RunningTrial) -> ScreenRow:
    row = TrialRow(
        name=running.name,
        label=running.label,
        state=running.state,
        is_baseline=running.label.startswith(YOUR_COMMAND),
        iterations=running.num_iterations,
        value=running.value,
        memory_bytes=running.peak_memory_bytes,
        duration_s=running.duration_s,
    )
    left_s = running.left.left_s
    left = [] if left_s is None else [f"about {format_seconds(left_s)} left"]
    rest = ", ".join([running.known, *left]) if running.known else running.why
    return ScreenRow(cells=row.cells(*NAMES), style="cyan", rest=rest)


@dataclass(frozen=True, slots=True)
class DrawnTrials:
    """Trials as far as the terminal is high: those that run, then the last that ended."""

    ended: Sequence[ScreenRow]
    running: Sequence[ScreenRow]
    status: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        shape = shape_of([*self.ended, *self.running], width)
        below = [line for row in self.running for line in row_lines(row, shape, width)]
        room = console.height - _MARGIN - len(below) - 2
        above: list[Text] = []
        for row in reversed(self.ended):
            lines = row_lines(row, shape, width)
            if len(lines) > room:
                break
            room -= len(lines)
            above = [*lines, *above]
        for line in (_cells(NAMES, shape, "bold"), *above, *below):
            line.no_wrap, line.overflow = True, "ellipsis"
            yield line
        yield Text(self.status, style="bold", overflow="fold")
