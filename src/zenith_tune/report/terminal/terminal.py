"""A study on a terminal in about fifteen lines: a row for each trial, the gain, what changed, and what to run."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from zenith_tune.presets.levers import lever_label
from zenith_tune.record.export import batch_note
from zenith_tune.report.terminal.running import ConsoleReporter
from zenith_tune.report.terminal.trial_table import cut
from zenith_tune.shell.secrets import MASK
from zenith_tune.study.changes import changes_text
from zenith_tune.study.parameters import Value
from zenith_tune.study.study import EndReason, Study
from zenith_tune.study.trial import YOUR_COMMAND, Outcome, Trial
from zenith_tune.study.trial_log import printable
from zenith_tune.study.verdict import NEARLY_FULL, Verdict
from zenith_tune.tuning.events import StudyEnd, StudyListener, StudyPlan
from zenith_tune.units import GIB, format_bytes, format_seconds, format_value

MAX_ROWS = 20
"""Of more trials the table at the end has the best ones."""
MAX_LABEL, MIN_LABEL = 44, 16
COLUMNS = 39
"""Characters of a row besides the layout."""
CAUSE_INDENT = 8
SHORT = 12
"""Characters of a layout that is repeated in front of what a trial adds to it."""
MARGIN = 6
"""Lines of the terminal that are left to what is not a trial, so that the live table never scrolls away."""


def gain_text(gain: float) -> str:
    """Write a gain as a percentage, small ones with a digit more."""
    return f"{gain:+.0%}" if abs(gain) >= 0.1 else f"{gain:+.1%}"


@dataclass(slots=True, kw_only=True)
class Row:
    """A trial that has ended."""

    trial: Trial
    label: str


def _why_lost(study: Study) -> str | None:
    """Say why the trial that measured most is not the best."""
    ok = [trial for trial in study.trials if trial.value is not None]
    most = min(ok, key=lambda trial: study.direction.sign * (trial.value or 0.0), default=None)
    if most is None or study.best is None or study.number_of(most) == study.number_of(study.best):
        return None
    why = study.why_ruled_out(most)
    if not study.is_within_limit(most):
        why = "takes more memory than it may"
    elif why is None and (study.reruns_of(most) or most.is_rerun):
        why = "gained less when it ran again"
    return f"trial {study.name_of(most)} measured more, but {why or 'not by more than the noise'}"


LEAST_PHASE = 0.03
"""Least share of a step of a phase that is printed."""


def _phases(study: Study) -> str:
    """Return the time of each phase in a step of the own command and of the best; empty where a log has none."""
    own, best = (run.phases if run is not None else {} for run in (study.baseline, study.best))
    least = LEAST_PHASE * sum(own.values())
    shown = [name for name in own if own[name] >= least and name in best]
    return ", ".join(f"{name} {format_seconds(own[name])} -> {format_seconds(best[name])}" for name in shown)


class TerminalReporter(ConsoleReporter):
    """A listener that prints each trial as it ends and the gain at the end; on a terminal the table is live."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._points: list[tuple[Mapping[str, Value], str]] = []
        """The points that ended, with the names that their rows have."""
        self._own_label = ""
        self._outlook: str | None = None
        self._rows: list[Row] = []
        self._num_printed = 0

    def study_started(self, plan: StudyPlan) -> None:
        super().study_started(plan)
        self._say(plan.title)
        for line in plan.warnings:
            self.noted(line)
        self._own_label = plan.own_label
        if plan.study.runs:
            self.noted(f"resumed: {plan.study.what_ran} kept")
            for trial in sorted(plan.study.runs, key=lambda trial: trial.number):
                label = YOUR_COMMAND + trial.mark if trial.is_baseline else self.labels.get(trial.number, "")
                self.trial_finished(trial, label, plan.study)
        self._start_live()

    def search_began(self, outlook: str) -> None:
        self._outlook = outlook
        self._print_rows()

    def trial_finished(self, trial: Trial, label: str, study: Study) -> None:
        super().trial_finished(trial, label, study)
        shown = self._label(label, trial.params)
        self._points.append((study.own_params or {} if trial.is_baseline else trial.params, shown))
        self._rows.append(Row(trial=trial, label=shown))
        if self._live is not None:
            self._console.set_window_title(self.pace.title(study))
        elif self._outlook is not None:  # the user's own command waits for what is searched after it
            self._print_rows()

    def study_ended(self, end: StudyEnd) -> None:
        fastest, was_live = end.study.fastest, self._stop_live()
        if was_live:
            self._leave_out_the_slow(end.study)
        if any(row.trial.ok or not row.trial.is_baseline for row in self._rows):
            self._print_rows(fastest if was_live else None)
        self._say("")
        for line in self._closing(end, names_best=not was_live):
            self._say(line)

    def rows(self) -> list[Text]:
        """Return what was found so far: what is searched, the head, and each trial that ended."""
        best = self.study.fastest if self.study is not None else None
        return [*self._head(), *(line for row in self._rows for line in self._row(row, best))]

    def _head(self) -> list[Text]:
        unit = next((row.trial.unit for row in self._rows if row.trial.unit), "value")
        head = self._cells("", "", "layout", [unit, "gain", "memory"])
        lines = [Text(line) for line in ([self._outlook] if self._outlook else [])]
        return [*lines, Text(), Text(head.rstrip(), style="bold")]

    def status_rows(self) -> list[Text]:
        """Return the trials that run, and how far the study is."""
        rows = []
        for running in list(self.running.values()):
            cells = self._cells("", running.name, self._label(running.label, {}), [])
            rows.append(Text(f"{cells}  {running.progress}", style="cyan"))
        return [*rows, Text(f"{self.bar()} {', '.join(self.how_far())}".strip(), style="dim")]

    def _closing(self, end: StudyEnd, *, names_best: bool) -> list[str]:
        """Return the lines under the table: the gain, what changed, what to run, where the page is, what comes next."""
        verdict, study = end.verdict or Verdict(sentence=""), end.study
        if end.reason is EndReason.FAILED and not study.trials:
            lines = [f"nothing was tuned: {end.why}"]
        else:
            lines = [verdict.headline, *([] if end.reason is EndReason.DONE else [f"stopped: {end.why}"])]
        is_gain = study.best is not None and study.fastest is study.best
        if names_best and study.best is not None and is_gain and verdict.low is not None:
            lines.append(_named("best", f"trial {study.number_of(study.best)}"))
        if verdict.changes and is_gain:
            lines.append(_named("changed", changes_text(verdict.changes)))
        if is_gain and (phases := _phases(study)):
            lines.append(_named("phases", phases))
        safer = verdict.safer
        if safer is not None and (verdict.memory_share or 0.0) >= NEARLY_FULL:
            less = f"trial {safer.number} is {safer.speedup:.2f}x at {format_bytes(safer.memory_bytes)}"
            lines.append(_named("memory", f"{verdict.memory_share:.0%} of a GPU is used; {less}"))
        if (lost := _why_lost(study)) is not None:
            lines.append(f"note: {lost}")
        if is_gain and end.best_command_path.exists():
            lines.append(_named("run", f"bash {_near(end.best_command_path)}"))
            if end.best_diff_path is not None and end.best_diff_path.exists():
                script = end.best_diff_path.read_text().partition("\n")[0].removeprefix("--- ")
                lines.append(_named("or", f"patch {script} {_near(end.best_diff_path)}"))
        elif study.trials or study.baseline:
            lines.append(_named("logs", str(_near(end.trials_path))))
        if (page := self._page(end)) is not None:
            lines.append(_named("page", str(_near(page))))
        lines += [_named("next", line.partition("; ")[0]) for line in end.diagnosis[:1]]
        if end.reason is EndReason.INTERRUPTED:
            lines.append(f"to continue: zenithtune resume {end.study_name}")
        secret = f"put your secrets back in place of {MASK} before you run it"
        notes = [*end.warnings, *filter(None, [batch_note(study)])]
        notes += [secret] if end.best_command is not None and MASK in end.best_command else []
        return [*lines, *(f"note: {note}" for note in notes)]

    def _leave_out_the_slow(self, study: Study) -> None:
        """Keep the best trials of many, in the order they ran."""
        if len(self._rows) <= MAX_ROWS:
            return
        sign = study.direction.sign
        order = sorted(self._rows, key=lambda row: (row.trial.value is None, sign * (row.trial.value or 0.0)))
        best = {id(row) for row in order[: MAX_ROWS // 2]}
        shown = [row for row in self._rows if id(row) in best or row.trial.is_baseline]
        self.noted(f"{len(self._rows) - len(shown)} slower or failed trials are left out: see the page, or -v")
        self._rows = shown

    def _print_rows(self, best: Trial | None = None) -> None:
        """Print what is not printed yet, with a mark at the best; a live table is drawn instead."""
        if self._live is not None or (self._outlook is None and not self._rows):
            return
        head = self._head() if self._rows and not self._num_printed else []
        for line in (*head, *(line for row in self._rows[self._num_printed :] for line in self._row(row, best))):
            self._console.print(line, soft_wrap=True)
        self._num_printed = len(self._rows)

    def _row(self, row: Row, best: Trial | None) -> list[Text]:
        """Return the line of a trial; why one failed continues below where there is no room behind it."""
        trial, study = row.trial, self.study
        assert study is not None
        name = study.name_of(trial)
        mark, style = ("*", "bold") if trial is best and not trial.is_baseline else ("", "")
        if trial.value is None:
            cells, why = self._cells(mark, name, row.label, []), failure_text(trial)
            if len(cells) + 2 + len(why) <= self._console.width:
                return [Text(f"{cells}  {why}", style="red")]
            kind, _, cause = why.partition(": ")
            indent = " " * CAUSE_INDENT
            below = textwrap.wrap(cause, self._console.width, initial_indent=indent, subsequent_indent=indent)
            return [Text(line, style="red") for line in (f"{cells}  {kind}", *below)]
        gain = study.row_gain(trial)
        shown = "" if gain is None or trial.is_baseline else gain_text(gain)
        memory = f"{trial.peak_memory_bytes / GIB:.0f} GiB" if trial.peak_memory_bytes else ""
        cells = self._cells(mark, name, row.label, [format_value(trial.value), shown, memory])
        return [Text(cells.rstrip(), style=style)]

    def _cells(self, mark: str, name: str, label: str, values: Sequence[str]) -> str:
        width = self._label_width
        widths = (12, 6, 8)
        cells = "".join(f"  {value:>{size}}" for value, size in zip(values, widths, strict=False))
        return f"{mark:1}{name:>4}  {cut(printable(label), width):<{width}}{cells}"

    @property
    def _label_width(self) -> int:
        return min(max(self._console.width - COLUMNS, MIN_LABEL), MAX_LABEL)

    def _label(self, label: str, params: Mapping[str, Value]) -> str:
        """Return a trial's name: of one that adds to an earlier one, what it adds."""
        if label.startswith(YOUR_COMMAND):
            return f"yours{f': {self._own_label}' if self._own_label else ''}{label.removeprefix(YOUR_COMMAND)}"
        base = [(point, name) for point, name in self._points if point and point.items() < params.items()]
        if not base:
            return label
        point, name = max(base, key=lambda each: len(each[0]))
        added = ", ".join(lever_label(key, value) for key, value in params.items() if key not in point)
        return f"{name if len(name) <= SHORT else '...'} + {added}"

    def draw(self) -> LiveTable:
        return LiveTable(self)


@dataclass(frozen=True, slots=True)
class LiveTable:
    """The table of a study that runs, as far as the terminal is high."""

    reporter: TerminalReporter

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows, running = self.reporter.rows(), self.reporter.status_rows()
        most = max(console.height - MARGIN - len(running), 1)
        for line in (*rows[-most:], *running):
            line.no_wrap, line.overflow = True, "ellipsis"
            yield line


class QuietReporter(StudyListener):
    """A listener that prints one thing at the end, such as the best command, and what went wrong."""

    def __init__(
        self, shown: Callable[[StudyEnd], str], page: Callable[[StudyEnd], Path | None] = lambda end: None
    ) -> None:
        self._shown, self._page = shown, page

    def noted(self, line: str) -> None:
        Console(stderr=True, highlight=False).print(Text(f"note: {line}"), soft_wrap=True)

    def study_ended(self, end: StudyEnd) -> None:
        self._page(end)
        if end.study.best is None and end.verdict is not None:
            self.noted(end.verdict.headline)
        elif text := self._shown(end):
            Console(highlight=False).print(Text(text), soft_wrap=True)


def failure_text(trial: Trial) -> str:
    """Return how a trial failed in a few words."""
    if trial.outcome is Outcome.OOM:
        return "out of memory"
    kind = trial.failure or str(trial.outcome)
    return f"{kind}: {trial.cause}" if trial.cause else kind


def _named(name: str, text: str) -> str:
    return f"{name + ':':<9}{text}"


def _near(path: Path) -> Path:
    """Return a path as it is seen from the current folder, where it lies below it."""
    with contextlib.suppress(OSError, ValueError):  # a folder that was deleted, or another
        return path.relative_to(Path.cwd())
    return path
