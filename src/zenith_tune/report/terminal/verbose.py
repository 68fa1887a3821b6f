"""All of a study on a terminal: every event while it runs, then every trial, prediction and setting."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Group
from rich.text import Text

from zenith_tune.record.export import batch_note
from zenith_tune.report.terminal.running import ConsoleReporter
from zenith_tune.report.terminal.trial_table import (
    LABEL,
    MAX_ROWS,
    cut,
    early_lines,
    failure_lines,
    trial_line,
    trial_table,
)
from zenith_tune.shell.secrets import MASK
from zenith_tune.study.lever_results import lever_table
from zenith_tune.study.study import EndReason, Study
from zenith_tune.study.trial import Findings, Outcome, Trial
from zenith_tune.tuning.events import StudyEnd, StudyPlan
from zenith_tune.units import count, format_bytes, format_gain, format_range, format_value

GAP = "  "
MAX_NAMED = 12
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
        wrapped = textwrap.wrap(row[-1], max(width - indent, LEAST_LAST), break_on_hyphens=False) or [""]
        if is_below:
            lines += [cells, *(" " * indent + line for line in wrapped if line)]
        else:
            lines += [f"{cells}{GAP}{wrapped[0]}".rstrip(), *(" " * indent + line for line in wrapped[1:])]
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


class VerboseReporter(ConsoleReporter):
    """A listener that prints all that happens; on a terminal the trials that run are drawn live below it."""

    def study_started(self, plan: StudyPlan) -> None:
        super().study_started(plan)
        budget = count(plan.n_trials, "trial") if plan.n_trials else "stops automatically"
        how = f"preset {plan.preset}, strategy {plan.strategy} ({budget}), {plan.evaluator}"
        self._say(f"study {plan.study_name}: {how}")
        for note in (*plan.warnings, *plan.notes):
            self.noted(note)
        if plan.num_finished:
            self.noted(f"resumed: {plan.study.what_ran} kept; {self.status()}")
        self._start_live()

    def trial_started(self, number: int, label: str, log_path: Path, limit_s: float | None, why: str = "") -> None:
        super().trial_started(number, label, log_path, limit_s, why)
        if why:
            # Above the live screen too: the reasons are what is left to read once it is gone.
            self._say(f"trial {self.name_of(number):>4}  {label:<{LABEL}}  starts    {why}")

    def trial_state(self, number: int, state: str) -> None:
        super().trial_state(number, state)
        if self._live is None:  # it shows the state until the next one
            self._say(f"trial {self.name_of(number):>4}  {self.labels.get(number, ''):<{LABEL}}  {state}")

    def trial_finished(self, trial: Trial, label: str, study: Study) -> None:
        super().trial_finished(trial, label, study)
        if self._live is not None:
            self._console.set_window_title(self.pace.title(study))
        self._console.print(trial_line(trial, study.name_of(trial), label, self.status()), soft_wrap=True)

    def status(self) -> str:
        """Say how far the study is: best so far, trials done, time left."""
        best, parts = self.study.fastest if self.study is not None else None, []
        if self.study is not None and best is not None and best.value is not None:
            who = "your command" if best.is_baseline else f"trial {self.study.name_of(best)}"
            parts.append(f"best {format_value(best.value)} ({who})")
        return ", ".join([*parts, *self.how_far()]) or "no value yet"

    def draw(self) -> Group:
        """Return the trials that run, with what is known of each, and how far the study is."""
        lines = [Text(f"{self.bar()} {self.status()}".strip(), style="bold")]
        for running in reversed(list(self.running.values())):
            shown = f"trial {running.name:>4}  {cut(running.label, LABEL):<{LABEL}}  {running.progress}"
            lines.insert(0, Text("; ".join(filter(None, [shown, running.known])), style="cyan"))
        return Group(*lines[-self._console.height + 2 :])

    def explained(self, line: str) -> None:
        self.noted(line)

    def search_began(self, outlook: str) -> None:
        if outlook:
            self.noted(outlook)

    def study_ended(self, end: StudyEnd) -> None:
        self._stop_live()
        self._say(f"stopped: {end.why}")
        if end.study.trials or end.study.baseline:
            self._console.print()
            self._console.print(trial_table(end.study, self.labels))
            self._print_rest(end.study)
        levers = lever_table(end.verdict.levers) if end.verdict is not None else None
        for table in (end.findings, levers):
            if table is not None and table.rows:
                self._console.print()
                for line in findings_lines(table, self._console.width):
                    self._say(line)
        self._print_best(end)
        if end.verdict is not None:
            self._say(f"verdict: {end.verdict.sentence}")
        for line in end.diagnosis:
            self._say(f"diagnosis: {line}")
        paths = {
            "best": end.best_command_path,
            "diff": end.best_diff_path,
            "csv": end.csv_path,
            "json": end.json_path,
            "logs": end.trials_path,
        }
        if (page := self._page(end)) is not None:
            paths["page"] = page
        for name, path in paths.items():
            if path is not None and path.exists():
                self._say(f"{name:5} {path}")
        self._say(f"{'study':5} {end.database_url}")
        if end.reason is EndReason.INTERRUPTED:
            self._say(f"to continue: zenithtune resume {end.study_name}")

    def _print_rest(self, study: Study) -> None:
        ok_first = sorted(study.counts().items(), key=lambda item: (item[0] is not Outcome.OK, str(item[0])))
        counts = ", ".join(f"{number} {outcome}" for outcome, number in ok_first)
        extra = f"; {count(study.num_pruned, 'point')} pruned" if study.num_pruned else ""
        extra += f"; {count(study.num_repeated, 'repeated point')} from the record" if study.num_repeated else ""
        shown = f" (the best {MAX_ROWS // 2} shown)" if len(study.trials) > MAX_ROWS else ""
        self._say(f"{study.what_ran}{shown}: {counts or 'none finished'}{extra}")
        if over := [trial for trial in study.trials if trial.ok and not study.is_within_limit(trial)]:
            limit = format_bytes(study.memory_limit_bytes or 0)
            names = ", ".join(study.name_of(trial) for trial in over[:MAX_NAMED]) + ", ..." * (len(over) > MAX_NAMED)
            self._say(f"  {len(over)} ok, but over the memory limit of {limit}: trial {names}")
        for line in (*early_lines(study), *failure_lines(study)):
            self._say(line)

    def _print_best(self, end: StudyEnd) -> None:
        study, fastest = end.study, end.study.fastest
        self._console.print()
        if study.best is None or fastest is None or fastest.value is None:
            self._print_warnings(end)  # that there is none is the verdict
            return
        first = study.first_run(fastest) or fastest
        who = "your own command" if fastest.is_baseline else f"trial {study.name_of(fastest)}"
        label = self.labels.get(first.number, "")
        label = f", {label}" if label and not fastest.is_baseline else ""
        self._say(f"best: {who}{label}: {format_value(fastest.value, fastest.unit)}{format_range(fastest.half_width)}")
        if not fastest.is_baseline:
            self._say("      " + " ".join(f"{name}={value}" for name, value in fastest.params.items()))
        self._print_gain(study)
        self._print_warnings(end)
        self._console.print()
        self._say(end.best_command or "")
        self._console.print()

    def _print_warnings(self, end: StudyEnd) -> None:
        for warning in end.warnings:
            self.noted(warning)
        if end.best_command is not None and MASK in end.best_command:
            self.noted(f"put your secrets back in place of {MASK} before you run it")

    def _print_gain(self, study: Study) -> None:
        base = study.baseline
        if base is None:
            return
        if study.gain is None:
            self._say(f"your command: {base.outcome}" + (f" ({base.cause})" if base.cause else ""))
        elif study.fastest is base:
            noise = f", within the noise of{format_range(study.noise_half_width)}" * study.is_within_noise
            self._say(f"gain: none; the best trial is {format_gain(study.gain)} against your own command{noise}")
        elif study.best_is_own and study.best is not None:
            runs = f"two runs of them differ by {format_gain(study.gain_of(study.best) or 0.0)}"
            self._say(f"gain: none; the best trial has the settings of your own command, and {runs}")
        else:
            over = format_value(base.value or 0, base.unit)
            self._say(f"gain: {format_gain(study.gain)} over your command ({over})")
        if note := batch_note(study):
            self.noted(note)
