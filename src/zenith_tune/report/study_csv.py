"""The trials of a study as CSV, one row each."""

from __future__ import annotations

import csv
import io
from typing import Any

COLUMNS = ("number", "label", "state", "is_baseline", "value", "unit", "spread", "gain", "step_s", "memory_bytes")
REST = ("duration_s", "started_s", "ended_s", "early", "failure", "cause", "why", "command", "folder")
PREDICTED = ("step_s", "memory_bytes", "oom_probability")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

Json = dict[str, Any]


def study_csv(study: Json) -> str:
    """Return every trial of a study, running ones too, with its parameters and predictions."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = study["parameters"]
    writer.writerow([*COLUMNS, *(f"predicted_{name}" for name in PREDICTED), *map(_plain, names), *REST])
    for trial in study["trials"]:
        row = {**trial, "unit": study["unit"]}
        predicted = trial["predicted"] or {}
        cells = [*(row[name] for name in COLUMNS), *(predicted.get(name) for name in PREDICTED)]
        cells += [trial["parameters"].get(name, "") for name in names]
        writer.writerow([_plain(cell) for cell in (*cells, *(row[name] for name in REST))])
    return text.getvalue()


def _plain(cell: Any) -> Any:
    """Keep a spreadsheet from running what a log or a parameter says."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
