"""What a terminal shows while a study runs: the last trials, those that run, the best so far and the time left."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from zenith_tune.report.trial_table import STYLES, in_short, shown_number
from zenith_tune.study import Study
from zenith_tune.trial import Trial
from zenith_tune.units import format_bytes, format_seconds, format_value

_ROWS = 10


class LiveScreen:
    """Keep what the screen shows; drawn by another thread while trials come and go."""

    def __init__(self) -> None:
        self._study: Study | None = None
        self._max_trials: int | None = None
        self._num_slots = 1
        self._running: dict[int, _Running] = {}
        self._recent: list[tuple[Trial, str]] = []

    def begin(self, max_trials: int | None, study: Study, num_slots: int = 1) -> None:
        """Take in the study, an upper bound on its trials, and how many run side by side."""
        self._num_slots = num_slots
        self._max_trials = max_trials
        self._study = study

    def start(self, number: int, label: str, why: str = "") -> None:
        """Take in a trial that starts."""
        self._running[number] = _Running(label=label, why=why)

    def state(self, number: int, state: str) -> None:
        """Take in what a trial waits for, or where it runs."""
        if (running := self._running.get(number)) is not None:
            running.state = state

    def progress(self, number: int, num_iterations: int, value: float | None) -> None:
        """Take in how far a trial is."""
        if (running := self._running.get(number)) is not None:
            running.num_iterations, running.value = num_iterations, value

    def finish(self, trial: Trial, label: str) -> None:
        """Take in a trial that ended."""
        self._running.pop(trial.number or 0, None)
        self._recent = [*self._recent, (trial, label)][-_ROWS:]

    def status(self) -> str:
        """Say how far the study is: best so far, trials done, time left."""
        if self._study is None:
            return ""
        best, num_done = self._study.fastest, self._study.num_searched
        parts = []
        if best is not None and best.value is not None:
            who = "your command" if best.is_baseline else f"trial {best.number}"
            parts.append(f"best {format_value(best.value)} ({who})")
        if self._max_trials is not None:
            parts.append(f"{num_done} of at most {self._max_trials}")
            num_turns = math.ceil(max(self._max_trials - num_done, 0) / self._num_slots)
            left_s = self._study.time_left_s(num_turns)
            if left_s:
                parts.append(f"at most {format_seconds(left_s)} left")
        return ", ".join(parts) or "no value yet"

    def draw(self) -> RenderableType:
        """Return the screen."""
        table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
        table.add_column("trial", no_wrap=True, min_width=5)
        table.add_column("layout", no_wrap=True, min_width=16, max_width=32, overflow="ellipsis")
        table.add_column("state", no_wrap=True, min_width=9, max_width=24, overflow="ellipsis")
        for name, width in (("iter", 4), ("value", 6), ("memory", 8)):
            table.add_column(name, no_wrap=True, justify="right", min_width=width)
        # Only the last column gives way where the terminal is narrow; why a trial runs was printed when it began.
        table.add_column("", no_wrap=True, overflow="ellipsis", ratio=1)
        for trial, label in list(self._recent):
            table.add_row(*_ended_cells(trial, label))
        for number, running in list(self._running.items()):
            table.add_row(Text(str(number)), *running.cells())
        return Group(table, Text(self.status(), style="bold", overflow="ellipsis", no_wrap=True))


@dataclass(slots=True, kw_only=True)
class _Running:
    """Hold what is known of a trial that runs."""

    label: str
    why: str
    state: str = "running"
    num_iterations: int | None = None
    value: float | None = None
    start: float = field(default_factory=time.monotonic)

    def cells(self) -> list[Text]:
        """Return its row, without its number."""
        elapsed = format_seconds(time.monotonic() - self.start)
        return [
            Text(self.label),
            Text(self.state, style="cyan"),
            Text("" if self.num_iterations is None else str(self.num_iterations)),
            Text("" if self.value is None else format_value(self.value)),
            Text(""),
            Text(f"{elapsed}  {self.why}".rstrip()),
        ]


def _ended_cells(trial: Trial, label: str) -> list[Text]:
    memory = format_bytes(trial.peak_memory_bytes) if trial.peak_memory_bytes else ""
    rest = trial.early or trial.why if trial.value is not None else in_short(trial)
    return [
        Text(shown_number(trial)),
        Text(label),
        Text(str(trial.outcome), style=STYLES.get(trial.outcome, "")),
        Text("" if trial.num_samples is None else str(trial.num_samples)),
        Text("" if trial.value is None else format_value(trial.value)),
        Text(memory),
        Text(rest),
    ]
