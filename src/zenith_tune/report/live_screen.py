"""What a terminal shows while a study runs: the last trials, those that run, the best so far and the time left."""

from __future__ import annotations

import time

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from zenith_tune.report.trial_table import STYLES, in_short, shown_number
from zenith_tune.study import Study
from zenith_tune.trial import Trial
from zenith_tune.units import format_seconds, format_value

_ROWS = 10


class LiveScreen:
    """Keep what the screen shows; drawn by another thread while trials come and go."""

    def __init__(self) -> None:
        self._study: Study | None = None
        self._max_trials: int | None = None
        self._running: dict[int, tuple[str, float]] = {}
        self._recent: list[tuple[Trial, str]] = []

    def begin(self, max_trials: int | None, study: Study) -> None:
        """Take in the study and an upper bound on its trials."""
        self._max_trials = max_trials
        self._study = study

    def start(self, number: int, label: str) -> None:
        """Take in a trial that starts."""
        self._running[number] = (label, time.monotonic())

    def finish(self, trial: Trial, label: str) -> None:
        """Take in a trial that ended."""
        self._running.pop(trial.number or 0, None)
        self._recent = [*self._recent, (trial, label)][-_ROWS:]

    def status(self) -> str:
        """Say how far the study is: best so far, trials done, time left."""
        if self._study is None:
            return ""
        best, num_done = self._study.fastest, len(self._study.trials)
        parts = []
        if best is not None and best.value is not None:
            who = "your command" if best.is_baseline else f"trial {best.number}"
            parts.append(f"best {format_value(best.value)} ({who})")
        if self._max_trials is not None:
            parts.append(f"{num_done} of at most {self._max_trials}")
            left_s = self._study.time_left_s(max(self._max_trials - num_done, 0))
            if left_s:
                parts.append(f"at most {format_seconds(left_s)} left")
        return ", ".join(parts) or "no value yet"

    def draw(self) -> RenderableType:
        """Return the screen."""
        table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
        table.add_column("trial", no_wrap=True, min_width=5)
        table.add_column("layout", no_wrap=True, min_width=24)
        table.add_column("state", no_wrap=True, min_width=9)
        # Only the last column gives way where the terminal is narrow.
        table.add_column("value", no_wrap=True, overflow="ellipsis", ratio=1)
        for trial, label in self._recent:
            state = Text(str(trial.outcome), style=STYLES.get(trial.outcome, ""))
            table.add_row(Text(shown_number(trial)), Text(label), state, Text(in_short(trial)))
        for number, (label, start) in list(self._running.items()):
            elapsed = format_seconds(time.monotonic() - start)
            table.add_row(Text(str(number)), Text(label), Text("running", style="cyan"), Text(elapsed))
        return Group(table, Text(self.status(), style="bold", overflow="ellipsis", no_wrap=True))
