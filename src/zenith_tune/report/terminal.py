"""Shows a study on a terminal: live while it runs, plain lines where there is no terminal, a summary at the end."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from zenith_tune.events import StudyEnd, StudyListener, StudyPlan
from zenith_tune.report.trial_table import MAX_ROWS, STYLES, failure_lines, shortened, trial_table
from zenith_tune.study import Study
from zenith_tune.trial import Trial
from zenith_tune.units import format_gain, format_seconds, format_value

_LIVE_ROWS = 10
_REFRESH_PER_S = 4


class TerminalReporter(StudyListener):
    """Print what happens, live if the console is a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._labels: dict[int, str] = {}
        self._study: Study | None = None
        self._max_trials: int | None = None
        self._num_done = 0
        self._running: dict[int, tuple[str, float]] = {}
        self._recent: list[tuple[Trial, str]] = []
        self._live: Live | None = None

    def study_started(self, plan: StudyPlan) -> None:
        self._max_trials = plan.max_trials
        budget = f"{plan.n_trials} trials" if plan.n_trials else "until it ends by itself"
        how = f"preset {plan.preset}, strategy {plan.strategy} ({budget}), {plan.evaluator}"
        self._say(f"study {plan.study_name}: {how}")
        for note in plan.notes:
            self.noted(note)
        if plan.num_finished:
            self._num_done = plan.num_finished
            self.noted(f"resumed: {plan.num_finished} finished trials are kept")
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=_REFRESH_PER_S, get_renderable=self._screen)
            self._live.start()

    def trial_started(self, number: int, label: str, log_path: Path, limit_s: float | None) -> None:
        self._labels[number] = label
        self._running[number] = (label, time.monotonic())

    def trial_finished(self, trial: Trial, label: str, study: Study) -> None:
        self._study = study
        self._running.pop(trial.number or 0, None)
        self._num_done += not trial.is_baseline
        self._recent = [*self._recent, (trial, label)][-_LIVE_ROWS:]
        if self._live is None:
            self._console.print(self._line(trial, label), soft_wrap=True)

    def trial_recalled(self, trial: Trial, label: str) -> None:
        self._labels[trial.number or 0] = label

    def noted(self, line: str) -> None:
        self._say(f"note: {line}")

    def study_ended(self, end: StudyEnd) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._say(f"stopped: {end.why}")
        if end.study.trials or end.study.baseline:
            self._console.print()
            self._console.print(trial_table(end.study, self._labels))
            self._print_rest(end.study)
        self._print_best(end)
        for name, path in (("csv", end.csv_path), ("json", end.json_path), ("logs", end.trials_path)):
            self._say(f"{name:5} {path}")
        self._say(f"{'study':5} {end.database_url}")

    def _print_rest(self, study: Study) -> None:
        counts = ", ".join(f"{count} {outcome}" for outcome, count in study.counts().items())
        extra = f"; {study.num_pruned} points pruned" if study.num_pruned else ""
        extra += f"; {study.num_repeated} repeated points answered from the record" if study.num_repeated else ""
        shown = f" (the best {MAX_ROWS // 2} shown)" if len(study.trials) > MAX_ROWS else ""
        self._say(f"{len(study.trials)} trials{shown}: {counts or 'none'}{extra}")
        for line in failure_lines(study):
            self._say(line)

    def _print_best(self, end: StudyEnd) -> None:
        study, best = end.study, end.study.best
        if best is None or best.value is None:
            self._say("no trial went well: there is no best command yet")
            return
        label = self._labels.get(best.number or 0, "")
        spread = f" ±{best.spread * 100:.1f}%" if best.spread is not None else ""
        self._console.print()
        self._say(f"best: trial {best.number}, {label}: {format_value(best.value, best.unit)}{spread}")
        self._say("      " + " ".join(f"{name}={value}" for name, value in best.params.items()))
        self._print_gain(study)
        self._console.print()
        self._say(end.best_command or "")
        self._console.print()

    def _print_gain(self, study: Study) -> None:
        base = study.baseline
        if base is None:
            return
        if study.gain is None:
            self._say(f"your command: {base.outcome}" + (f" ({base.cause})" if base.cause else ""))
        elif study.fastest is base:
            self._say(f"gain: none; your own command is the fastest tried ({format_value(base.value or 0, base.unit)})")
        else:
            over = format_value(base.value or 0, base.unit)
            self._say(f"gain: {format_gain(study.gain)} over your command ({over})")

    def _say(self, line: str) -> None:
        """Print a line as it is: no colour, no wrapping, so that it can be pasted."""
        self._console.print(Text(line), soft_wrap=True)

    def _line(self, trial: Trial, label: str) -> Text:
        number = "base" if trial.is_baseline else str(trial.number)
        value = format_value(trial.value, trial.unit) if trial.value is not None else shortened(trial.cause)
        line = Text(f"trial {number:>4}  {label:<28}  ")
        line.append(f"{trial.outcome!s:<9}", style=STYLES.get(trial.outcome, ""))
        return line.append(f" {value}  [{self._status()}]")

    def _status(self) -> str:
        best = self._study.best if self._study else None
        parts = []
        if best is not None and best.value is not None:
            parts.append(f"best {format_value(best.value)} (trial {best.number})")
        if self._max_trials is not None:
            left = max(self._max_trials - self._num_done, 0)
            parts.append(f"{self._num_done} of at most {self._max_trials}")
            left_s = self._study.time_left_s(left) if self._study else None
            if left_s:
                parts.append(f"at most {format_seconds(left_s)} left")
        return ", ".join(parts) or "no value yet"

    def _screen(self) -> RenderableType:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("trial", "layout", "state", "value"):
            table.add_column(name, no_wrap=True)
        for trial, label in self._recent:
            number = "base" if trial.is_baseline else str(trial.number)
            value = format_value(trial.value, trial.unit) if trial.value is not None else shortened(trial.cause)
            state = Text(str(trial.outcome), style=STYLES.get(trial.outcome, ""))
            table.add_row(Text(number), Text(label), state, Text(value))
        for number_running, (label, start) in list(self._running.items()):
            elapsed = format_seconds(time.monotonic() - start)
            table.add_row(str(number_running), Text(label), Text("running", style="cyan"), Text(elapsed))
        return Group(table, Text(self._status(), style="bold"))
