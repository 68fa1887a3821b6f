"""A trial on one line, for where there is no terminal: what matters stands first, and under that of other trials."""

from __future__ import annotations

from rich.text import Text

from zenith_tune.report.terminal.trial_table import STYLES, shortened, shown_number
from zenith_tune.study.trial import Trial
from zenith_tune.units import format_bytes, format_value

LABEL = 35
WHOLE, FRACTION = 7, 5
"""Digits of a value before its point, and the point with those behind it."""


def trial_line(trial: Trial, label: str, status: str) -> Text:
    """Return number, layout, state, value and memory in columns, then what else is to say, and how the study stands."""
    line = Text(f"trial {shown_number(trial):>4}  {_in_column(label)}  ")
    line.append(f"{trial.outcome!s:<9}", style=STYLES.get(trial.outcome, ""))
    told = [_measured(trial) if trial.value is not None else f" {shortened(trial.cause)}"]
    told += [label] if len(label) > LABEL else []
    return line.append(f"{'  '.join(told)}  [{status}]")


def _in_column(label: str) -> str:
    """Return a layout as wide as every other; of a long one the beginning."""
    return f"{label:<{LABEL}}" if len(label) <= LABEL else label[: LABEL - 1] + "…"


def _measured(trial: Trial) -> str:
    whole, point, rest = format_value(trial.value or 0.0).partition(".")
    value = f"{whole:>{WHOLE}}{point + rest:<{FRACTION}}"
    parts = [f"{value} {trial.unit}".rstrip()]
    parts += [f"{format_bytes(trial.peak_memory_bytes):>8}"] if trial.peak_memory_bytes else []
    return "  ".join([*parts, *([trial.early] if trial.early is not None else [])])
