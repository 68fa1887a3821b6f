"""What a terminal shows while a study runs: the last trials, those that run, the best so far and the time left."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from zenith_tune.report.screen_rows import ScreenRow, head_line, row_lines, shape_of
from zenith_tune.report.study_pace import StudyPace
from zenith_tune.report.terminal.trial_table import STYLES, called, shown_number
from zenith_tune.study.study import Study
from zenith_tune.study.trial import YOUR_COMMAND, Trial
from zenith_tune.tuning.events import FIRST_STATE
from zenith_tune.units import format_bytes, format_seconds, format_value

_ROWS = 10
_MARGIN = 2
"""Lines of the terminal that are left alone, so that what is drawn never scrolls away."""


class LiveScreen:
    """Keep what the screen shows; drawn by another thread while trials come and go."""

    def __init__(self) -> None:
        self._study: Study | None = None
        self._first_state = FIRST_STATE
        self._pace = StudyPace()
        self._running: dict[int, _Running] = {}
        self._recent: list[tuple[Trial, str]] = []

    def begin(self, max_trials: int | None, study: Study, num_slots: int = 1, first_state: str = FIRST_STATE) -> None:
        """Take in the study, an upper bound on its trials, how many run side by side, and how each begins."""
        self._first_state = first_state
        self._pace = StudyPace(max_trials=max_trials, num_slots=num_slots)
        self._study = study

    def start(self, number: int, label: str, why: str = "") -> None:
        """Take in a trial that starts."""
        self._running[number] = _Running(label=label, why=why, state=self._first_state)

    def state(self, number: int, state: str) -> None:
        """Take in what a trial waits for, or where it runs."""
        if (running := self._running.get(number)) is not None:
            running.state = state

    def progress(self, number: int, num_iterations: int, value: float | None) -> None:
        """Take in how far a trial is."""
        if (running := self._running.get(number)) is not None:
            running.num_iterations, running.value = num_iterations, value

    def memory(self, number: int, peak_memory_bytes: int) -> None:
        """Take in how much memory a trial has taken at most."""
        if (running := self._running.get(number)) is not None:
            running.peak_memory_bytes = peak_memory_bytes

    def finish(self, trial: Trial, label: str) -> None:
        """Take in a trial that ended."""
        self._running.pop(trial.number or 0, None)
        self._recent = [*self._recent, (trial, label)][-_ROWS:]

    def status(self) -> str:
        """Say how far the study is: best so far, trials done, time left."""
        if self._study is None:
            return ""
        best = self._study.fastest
        parts = []
        if best is not None and best.value is not None:
            who = "your command" if best.is_baseline else f"trial {best.number}"
            parts.append(f"best {format_value(best.value)} ({who})")
        return ", ".join([*parts, *self._pace.words(self._study)]) or "no value yet"

    def draw(self) -> DrawnTrials:
        """Return the screen."""
        ended = [_ended_row(trial, label) for trial, label in list(self._recent)]
        running = [running.row(number) for number, running in list(self._running.items())]
        return DrawnTrials(ended, running, self.status())


@dataclass(frozen=True, slots=True)
class DrawnTrials:
    """Draw trials as far as the terminal is high: those that run, then the last that ended."""

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
        for line in (head_line(shape), *above, *below):
            line.no_wrap, line.overflow = True, "ellipsis"
            yield line
        yield Text(self.status, style="bold", overflow="fold")


@dataclass(slots=True, kw_only=True)
class _Running:
    """Hold what is known of a trial that runs."""

    label: str
    why: str
    state: str
    num_iterations: int | None = None
    value: float | None = None
    peak_memory_bytes: int | None = None
    start: float = field(default_factory=time.monotonic)

    def row(self, number: int) -> ScreenRow:
        """Return its row."""
        cells = (
            called(number, is_baseline=self.label == YOUR_COMMAND),
            self.label,
            self.state,
            "" if self.num_iterations is None else str(self.num_iterations),
            "" if self.value is None else format_value(self.value),
            format_bytes(self.peak_memory_bytes) if self.peak_memory_bytes else "",
            format_seconds(time.monotonic() - self.start),
        )
        return ScreenRow(cells=cells, style="cyan", rest=self.why)


def _ended_row(trial: Trial, label: str) -> ScreenRow:
    cells = (
        shown_number(trial),
        label,
        str(trial.outcome),
        "" if trial.num_samples is None else str(trial.num_samples),
        "" if trial.value is None else format_value(trial.value),
        format_bytes(trial.peak_memory_bytes) if trial.peak_memory_bytes else "",
        "" if trial.duration_s is None else format_seconds(trial.duration_s),
    )
    rest = (trial.early or trial.why) if trial.value is not None else trial.cause or ""
    return ScreenRow(cells=cells, style=STYLES.get(trial.outcome, ""), rest=rest)
