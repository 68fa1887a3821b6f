"""The second track: what a planner predicts of measured runs that it is not shown, and how far it is off."""

from __future__ import annotations

import json
import math
import shlex
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median
from typing import Any

from layoutbench.landscape import LandscapeError
from layoutbench.runner import TunerError

ROWS, RESULT = "layoutbench-rows/1", "layoutbench-predictions/1"
SECTIONS = ("model", "job", "cluster", "layout")
STEP, MEMORY = "step_s", "peak_memory_bytes"
QUANTITIES = {STEP: "step", MEMORY: "memory"}
"""What is predicted, and what it is called where it is scored."""

Prediction = Mapping[str, float | str]
"""A number for each of QUANTITIES, or in its place the reason why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A measured run."""

    source: str
    given: Mapping[str, Any]
    """All that a planner may know of it: SECTIONS."""
    measured: Mapping[str, float]
    """Those of QUANTITIES that were measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What a planner says of rows, in their order."""

    predictions: Sequence[Prediction]
    version: str = ""
    assumed: Sequence[str] = ()
    """What it assumed of all rows, such as efficiencies."""
    cpu_s: float = math.nan
    """CPU seconds that it took, its start not counted."""
    scored: Mapping[str, Any] = field(default_factory=dict)
    """Scores of another planner on the rows that this one could express."""


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """Write rows as `read_rows` reads them."""
    content = [{"source": row.source, **row.given, **row.measured} for row in rows]
    lines = ",\n  ".join(map(json.dumps, content))
    path.write_text(f'{{"schema": "{ROWS}", "rows": [\n  {lines}\n]}}\n', encoding="utf-8")


def read_rows(places: Sequence[Path]) -> list[Row]:
    """Read rows from files, and from all files below folders."""
    paths = [path for place in places for path in (sorted(place.rglob("*.json")) if place.is_dir() else [place])]
    rows = [row for path in paths for row in _rows(path)]
    if not rows:
        raise LandscapeError(f"{', '.join(map(str, places))} must hold measured rows, *.json, but holds none")
    return rows


def _rows(path: Path) -> list[Row]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LandscapeError(f"{path}: {error}") from None
    if not isinstance(content, dict) or content.get("schema") != ROWS:
        raise LandscapeError(f'{path}: "schema" must be "{ROWS}"')
    try:
        return [
            Row(
                source=item["source"],
                given={section: item[section] for section in SECTIONS},
                measured={name: float(item[name]) for name in QUANTITIES if item.get(name)},
            )
            for item in content["rows"]
        ]
    except KeyError as error:
        raise LandscapeError(f"{path}: every row must have {error}") from None


def ask(command: str, rows: Sequence[Row]) -> Answers:
    """Run a planner's command, which reads rows as JSON and writes its answers as JSON."""
    given = json.dumps({"rows": [row.given for row in rows]})
    try:
        done = subprocess.run(shlex.split(command), input=given, capture_output=True, text=True, check=True)
        content = json.loads(done.stdout)
        answers = Answers(**content)
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise TunerError(f"planner `{command}` ended with exit code {error.returncode}: {last}") from None
    except (OSError, ValueError, TypeError) as error:
        raise TunerError(f"planner `{command}` cannot be run: {error}") from None
    if len(answers.predictions) != len(rows):
        found = len(answers.predictions)
        raise TunerError(f"planner `{command}` must predict every row, but predicts {found} of {len(rows)}")
    return answers


def is_predicted(prediction: Prediction, quantity: str) -> bool:
    """Return whether there is a number that can be compared.

    >>> is_predicted({"step_s": 1.5}, "step_s"), is_predicted({"step_s": "no such GPU"}, "step_s")
    (True, False)
    """
    value = prediction.get(quantity)
    return isinstance(value, int | float) and 0 < value < math.inf


def scores(
    rows: Sequence[Row], predictions: Sequence[Prediction], among: Sequence[Prediction] | None = None
) -> dict[str, Any]:
    """Return how far predictions are off, by quantity; only on rows that `among` predicts too, where it is given."""
    found: dict[str, Any] = {}
    for quantity, name in QUANTITIES.items():
        pairs = [
            (row, prediction)
            for row, prediction, other in zip(rows, predictions, among or predictions, strict=True)
            if quantity in row.measured and (among is None or is_predicted(other, quantity))
        ]
        ratios = [
            (row.source, float(prediction[quantity]) / row.measured[quantity])
            for row, prediction in pairs
            if is_predicted(prediction, quantity)
        ]
        missing = (prediction for _, prediction in pairs if not is_predicted(prediction, quantity))
        sources = {source for source, _ in ratios}
        by_source = {name: errors([ratio for source, ratio in ratios if source == name]) for name in sorted(sources)}
        found[name] = {
            "rows": len(pairs),
            **errors([ratio for _, ratio in ratios]),
            "median_of_sources_pct": _rounded([each["median_abs_pct"] for each in by_source.values()]),
            "by_source": by_source,
            "why_not": dict(Counter(str(prediction.get(quantity)) for prediction in missing).most_common()),
        }
    return found


def errors(ratios: Sequence[float]) -> dict[str, Any]:
    """Summarise predicted over measured figures: errors are relative to what was measured.

    >>> errors([0.5, 0.9, 1.2])
    {'predicted': 3, 'median_abs_pct': 20.0, 'mean_abs_pct': 26.67, 'median_ratio': 0.9}
    """
    sizes = [abs(ratio - 1) * 100 for ratio in ratios]
    return {
        "predicted": len(ratios),
        "median_abs_pct": _rounded(sizes),
        "mean_abs_pct": round(fmean(sizes), 2) if sizes else None,
        "median_ratio": round(median(ratios), 3) if ratios else None,
    }


def _rounded(values: Sequence[float]) -> float | None:
    return round(median(values), 2) if values else None


def predictions_of(rows: Sequence[Row], answers: Mapping[str, Answers], *, sealed: bool = False) -> dict[str, Any]:
    """Return what is written of planners; of sealed rows nothing but their number and the scores.

    A planner has seen the rows when it states its version, so that this is not written either.
    """
    planners = {name: {"scores": scores(rows, given.predictions)} | _told(given) for name, given in answers.items()}
    if sealed:
        planners = {name: {"scores": _sealed(found["scores"])} for name, found in planners.items()}
    return {
        "format": RESULT,
        "date": datetime.now(UTC).date().isoformat(),
        "sealed": sealed,
        "num_rows": len(rows),
        "planners": planners,
    }


def _told(given: Answers) -> dict[str, Any]:
    num = sum(any(is_predicted(prediction, name) for name in QUANTITIES) for prediction in given.predictions)
    rate = round(num / given.cpu_s, 1) if given.cpu_s > 0 else None
    return {
        "version": given.version,
        "assumed": list(given.assumed),
        "layouts_per_cpu_s": rate,
        "same_rows": given.scored,
    }


def _sealed(found: Mapping[str, Any]) -> dict[str, Any]:
    hidden = ("by_source", "why_not")
    return {name: {key: value for key, value in each.items() if key not in hidden} for name, each in found.items()}
