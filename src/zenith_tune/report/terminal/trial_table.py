"""The table of trials that a study ends with, and its failures grouped by cause."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from zenith_tune.report.trial_row import trial_cells
from zenith_tune.study.study import Study
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.units import format_bytes, format_value

MAX_ROWS = 60
STYLES = {Outcome.OK: "green", Outcome.OOM: "red", Outcome.ERROR: "red", Outcome.TIMEOUT: "yellow"}
_MAX_CAUSE = 90
_MAX_NUMBERS = 8


def trial_table(study: Study, labels: dict[int, str]) -> Table:
    """Return the trials as a table that fits 80 columns; of a long study, the best ones."""
    rows = _rows(study, _chosen(study))
    unit = next((trial.unit for trial in rows if trial.unit), "")
    caption = f"value in {unit}, ± half of its 90% range" if unit else None
    table = Table(box=None, pad_edge=False, header_style="bold", caption=caption)
    table.add_column("trial", justify="right", no_wrap=True)
    table.add_column("layout", overflow="fold", min_width=16)
    for name in ("outcome", "value", "gain", "memory", "time"):
        table.add_column(name, justify="left" if name == "outcome" else "right", no_wrap=True)
    for trial in rows:
        table.add_row(*_cells(trial, study, labels), style="bold" if trial is study.fastest else "")
    return table


def failure_lines(study: Study) -> list[str]:
    """Return one line per kind of failure: how many, an example of the cause, and which trials."""
    groups: dict[str, list[Trial]] = {}
    for trial in study.trials:
        if trial.cause is not None:
            groups.setdefault(trial.failure or str(trial.outcome), []).append(trial)
    return [
        f"  {len(trials)} {kind} (trial {_numbers(study, trials)}): {trials[0].cause}"
        for kind, trials in groups.items()
    ]


def early_lines(study: Study) -> list[str]:
    """Return one line per reason for which trials were stopped early: how many, which, and an example."""
    groups: dict[str, list[Trial]] = {}
    for trial in study.trials:
        if trial.early is not None and not trial.is_rerun:
            groups.setdefault(_early_kind(trial.early), []).append(trial)
    return [
        f"  {len(trials)} stopped early (trial {numbers}){', e.g.' if trials[1:] else ':'} {trials[0].early}"
        for trials in groups.values()
        for numbers in [_numbers(study, trials)]
    ]


def _numbers(study: Study, trials: list[Trial]) -> str:
    shown = ", ".join(study.name_of(trial) for trial in trials[:_MAX_NUMBERS])
    return shown if len(trials) <= _MAX_NUMBERS else f"{shown}, ..."


def _rows(study: Study, trials: list[Trial]) -> list[Trial]:
    return [*([study.baseline] if study.baseline else []), *trials]


EARLY = {"known": "done early", "behind": "too slow"}
"""States of a trial that was stopped early, by the first word of the reason."""


def _early_kind(reason: str) -> str:
    """Return the first word of a reason: known, or behind."""
    return reason.partition(" ")[0]


def _chosen(study: Study) -> list[Trial]:
    if len(study.trials) <= MAX_ROWS:
        # Side by side they end in another order than they began.
        return sorted(study.trials, key=lambda trial: trial.number)
    ok = [trial for trial in study.trials if trial.value is not None]
    ok.sort(key=lambda trial: study.direction.sign * (trial.value or 0.0))
    return ok[: MAX_ROWS // 2]


def _cells(trial: Trial, study: Study, labels: dict[int, str]) -> list[Text]:
    label = "your command" if trial.is_baseline else labels.get(trial.number, "")
    ended = str(trial.outcome) if trial.early is None else EARLY[_early_kind(trial.early)]
    figures = {"name": study.name_of(trial), "label": label, "state": ended, "is_baseline": trial.is_baseline}
    figures |= {"value": trial.value, "half_width": trial.half_width, "gain": study.row_gain(trial)}
    figures |= {"memory_bytes": trial.peak_memory_bytes, "duration_s": trial.duration_s}
    columns = ("trial", "layout", "state", "value and spread", "gain", "memory", "time")
    number, name, state, *rest = trial_cells(figures, *columns)
    mark = "* " if trial is study.fastest else ""
    return [Text(mark + number), Text(name), Text(state, style=STYLES.get(trial.outcome, "")), *map(Text, rest)]


LABEL = 35
WHOLE, FRACTION = 7, 5
"""Digits of a value before its point, and the point with those behind it."""


def trial_line(trial: Trial, name: str, label: str, status: str) -> Text:
    """Return number, layout, state, value and memory in columns, then what else is to say, and how the study stands."""
    line = Text(f"trial {name:>4}  {cut(label, LABEL):<{LABEL}}  ")
    line.append(f"{trial.outcome!s:<9}", style=STYLES.get(trial.outcome, ""))
    parts = [_measured(trial) if trial.value is not None else f" {cut(trial.cause or '', _MAX_CAUSE)}"]
    parts += [label] if len(label) > LABEL and not trial.why else []  # the line of its start has it whole
    return line.append(f"{'  '.join(parts)}  [{status}]")


def cut(text: str, width: int) -> str:
    """Return a text, or as much of it as there is room for."""
    return text if len(text) <= width else text[: width - 1] + "…"


def _measured(trial: Trial) -> str:
    whole, point, rest = format_value(trial.value or 0.0).partition(".")
    value = f"{whole:>{WHOLE}}{point + rest:<{FRACTION}}"
    parts = [f"{value} {trial.unit}".rstrip()]
    parts += [f"{format_bytes(trial.peak_memory_bytes):>8}"] if trial.peak_memory_bytes else []
    return "  ".join([*parts, *([trial.early] if trial.early is not None else [])])
