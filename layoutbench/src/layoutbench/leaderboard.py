"""Results as files: JSON that can be read back, and the leaderboard as markdown and as one HTML page with plots."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from layoutbench.landscape import Landscape, LandscapeError
from layoutbench.plots import line_plot
from layoutbench.runner import Record
from layoutbench.scores import CURVE, RATIOS, all_scores

RESULT = "layoutbench-result/1"
PACKAGES = {
    "": ("layoutbench", "numpy"),
    "optuna": ("optuna", "cmaes"),
    "smac": ("smac",),
    "boosted": ("scikit-learn",),
    "deepspeed": ("deepspeed", "xgboost", "xgboost-cpu"),
    "zenithtune": ("zenith-tune",),
}
"""By how the names of tuners begin: packages whose versions matter."""
COLUMNS = (
    # heading, score, factor, digits, unit
    ("trials to 1%", "trials_to_1pct", 1.0, 1, ""),
    ("GPU-hours to 1%", "gpu_seconds_to_1pct", 1 / 3600, 1, ""),
    ("of them crashed", "crash_gpu_seconds_to_1pct", 1 / 3600, 1, ""),
    ("share of the cost of all", "cost_share_to_1pct", 100.0, 1, "%"),
    ("came within 1%", "reached_1pct", 100.0, 0, "%"),
    ("regret after 1", "regret_after_1", 100.0, 1, "%"),
    ("after 5", "regret_after_5", 100.0, 1, "%"),
    ("after 20", "regret_after_20", 100.0, 1, "%"),
    ("trials until it stops", "trials_until_stop", 1.0, 1, ""),
    ("GPU-hours until it stops", "gpu_seconds_until_stop", 1 / 3600, 1, ""),
    ("regret then", "regret_at_stop", 100.0, 1, "%"),
)
ABOUT = """\
Lower is better but for "came within 1%". Every figure is a mean over landscapes, each the mean over its seeds, with its
95% bootstrap interval over landscapes. A trial is one layout, whether it ran or crashed, and costs its wall time on
every GPU. Regret is how much slower than the best layout that runs with the seed the one is that looked best so far; it
counts as 100% while nothing ran, and at most as 100%. A tuner that does not come within 1% counts with all layouts of
the landscape. The last three columns are of tuners that stop by themselves."""


def result_of(
    records: Sequence[Record],
    landscapes: Sequence[Landscape],
    *,
    seeds: int,
    most_trials: int,
    settings: Mapping[str, str],
    sealed: bool = False,
) -> dict[str, Any]:
    """Return what is written of a run; of sealed landscapes nothing but their number and the scores.

    `settings` has what tuners say of their own.
    """
    result: dict[str, Any] = {
        "format": RESULT,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": _versions(record.tuner for record in records),
        "settings": dict(settings),
        "seeds": seeds,
        "most_trials": most_trials,
        "sealed": sealed,
        "num_landscapes": len(landscapes),
        "scores": all_scores(records),
    }
    if sealed:
        for scores in result["scores"].values():
            scores["cannot_search"] = len(scores["cannot_search"])
        return result
    sources = {item.name: {"layouts": len(item.layouts), **item.source} for item in landscapes}
    return result | {"landscapes": sources, "records": [_finite(asdict(record)) for record in records]}


def merged(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one result of several; each tuner is taken from the last that has it."""
    if len(results) == 1:
        return dict(results[0])
    if any("records" not in result for result in results):
        raise LandscapeError(
            "only what `layoutbench run` wrote can be merged, and no sealed result: these are scores alone"
        )
    for name in ("seeds", "most_trials"):
        if len({result[name] for result in results}) > 1:
            raise LandscapeError(f"results must agree in {name} to be merged, but got {[r[name] for r in results]}")
    if len({frozenset(result["landscapes"]) for result in results}) > 1:
        raise LandscapeError("results must be of the same landscapes to be merged: run the tuners on the same folders")
    by_tuner: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        for name in result["scores"]:
            by_tuner[name] = [record for record in result["records"] if record["tuner"] == name]
    records = [record for own in by_tuner.values() for record in own]
    scores = all_scores([_record(record) for record in records])
    stated = {name: number for result in results for name, number in result["versions"].items()}
    versions = {name: stated[name] for name in _packages(scores) if name in stated}
    settings = {name: text for result in results for name, text in result.get("settings", {}).items()}
    return {**results[-1], "versions": versions, "settings": settings, "records": records, "scores": scores}


def read_result(path: Path) -> dict[str, Any]:
    """Read what `layoutbench run` wrote."""
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LandscapeError(f"result {str(path)!r} cannot be read: {error}") from None
    if not isinstance(result, dict) or result.get("format") != RESULT:
        raise LandscapeError(f'result {str(path)!r} must have the format "{RESULT}": write it with `layoutbench run`')
    return result


def write_result(result: Mapping[str, Any], path: Path) -> None:
    """Write a result with one record per line."""
    head = json.dumps({name: value for name, value in result.items() if name not in ("records", "scores")}, indent=1)
    scores = ",\n  ".join(f"{json.dumps(name)}: {json.dumps(found)}" for name, found in result["scores"].items())
    text = f'{head[:-2]},\n "scores": {{\n  {scores}\n }}'
    if "records" in result:
        text += ',\n "records": [\n  ' + ",\n  ".join(map(json.dumps, result["records"])) + "\n ]"
    path.write_text(text + "\n}\n", encoding="utf-8")


def markdown(result: Mapping[str, Any]) -> str:
    """Return the leaderboard as a page of markdown."""
    head, rows = _table(result)
    lines = ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]
    parts = ["# LayoutBench leaderboard", _origin(result), ABOUT, "\n".join(lines), *_notes(result)]
    if "landscapes" in result:
        parts += ["## Landscapes", "\n".join(f"- {line}" for line in _sources(result))]
    return "\n\n".join(parts) + "\n"


def html_page(result: Mapping[str, Any]) -> str:
    """Return the leaderboard as one HTML page that loads nothing."""
    head, rows = _table(result)
    cells = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        "<tr>"
        + f'<th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(c)}</td>" for c in row[1:])
        + "</tr>\n"
        for row in rows
    )
    paragraphs = "".join(f"<p>{escape(text)}</p>\n" for text in (_origin(result), ABOUT, *_notes(result)))
    sources = "".join(f"<li>{escape(line)}</li>\n" for line in _sources(result)) if "landscapes" in result else ""
    landscapes = f"<h2>Landscapes</h2>\n<ul>{sources}</ul>\n" if sources else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>LayoutBench leaderboard</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>'
        "body{font-family:system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem;color:#222}"
        "table{border-collapse:collapse;font-size:.85rem}th,td{padding:.3rem .5rem;border-bottom:1px solid #ddd;"
        "text-align:right}th:first-child{text-align:left}svg{max-width:100%;height:auto}.wide{overflow-x:auto}"
        f"</style></head><body>\n<h1>LayoutBench leaderboard</h1>\n{paragraphs}"
        f'<div class="wide" tabindex="0"><table><thead><tr>{cells}</tr></thead><tbody>\n{body}</tbody></table></div>\n'
        f"{_plots(result)}\n{landscapes}</body></html>\n"
    )


def _plots(result: Mapping[str, Any]) -> str:
    scores = result["scores"]
    regret = line_plot(
        {name: found["curve"] for name, found in scores.items()},
        list(range(1, CURVE + 1)),
        title="Regret after so many trials, mean over landscapes",
        x_label="trials, crashed ones counted",
        y_label="behind the best layout",
    )
    profile = line_plot(
        {name: found["profile"] for name, found in scores.items()},
        RATIOS,
        title="Performance profile: searches solved within so many times the cheapest tuner's cost",
        x_label="GPU-seconds to 1%, relative to the cheapest tuner on the same search",
        y_label="share of searches",
    )
    return f"<h2>Regret</h2>\n{regret}\n<h2>Performance profile</h2>\n{profile}"


def _table(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    head = ["tuner", "landscapes", *(column[0] for column in COLUMNS)]
    rows = []
    for name, found in result["scores"].items():
        cells = [_cell(found.get(score), factor, digits, unit) for _, score, factor, digits, unit in COLUMNS]
        rows.append([name, str(found["landscapes"]), *cells])
    return head, rows


def _cell(score: Mapping[str, float] | None, factor: float, digits: int, unit: str) -> str:
    if score is None:
        return ""
    mean, low, high = (f"{score[name] * factor:.{digits}f}" for name in ("mean", "low", "high"))
    return f"{mean}{unit} ({low} to {high})"


def _origin(result: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    kind = "sealed landscapes" if result["sealed"] else "landscapes"
    return (
        f"Run on {result['date']} over {result['num_landscapes']} {kind} with {result['seeds']} seeds "
        f"(0 to {result['seeds'] - 1}) and at most {result['most_trials']} trials; {versions}."
    )


def _notes(result: Mapping[str, Any]) -> list[str]:
    lines = [f"{name}: {text}." for name, text in result.get("settings", {}).items()]
    for name, found in result["scores"].items():
        cannot = found["cannot_search"]
        number = cannot if isinstance(cannot, int) else len(cannot)
        if number:
            lines.append(f"{name} cannot search {number} of the landscapes, which count as not found.")
        if found["landscapes"] < result["num_landscapes"]:
            lines.append(f"{name} is not judged on {result['num_landscapes'] - found['landscapes']} it was fitted to.")
    return lines


def _sources(result: Mapping[str, Any]) -> list[str]:
    return [
        f"{name}: {item['layouts']} layouts; {item['url']}; {item['rows']}; {item['licence']}; cost {item['cost']}"
        for name, item in result["landscapes"].items()
    ]


def _versions(tuners: Iterable[str]) -> dict[str, str]:
    """Return the versions of what took part, as far as it is installed."""
    found = {}
    for package in _packages(tuners):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _packages(tuners: Iterable[str]) -> list[str]:
    names = list(tuners)
    parts = [packages for prefix, packages in PACKAGES.items() if any(name.startswith(prefix) for name in names)]
    return [package for packages in parts for package in packages]


def _finite(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record as JSON has it, without infinity and with short figures."""
    regrets = [None if math.isinf(value) else round(value, 5) for value in record["regrets"]]
    seconds = [round(value, 1) for value in record["gpu_seconds"]]
    return record | {"regrets": regrets, "gpu_seconds": seconds, "all_gpu_seconds": round(record["all_gpu_seconds"], 1)}


def _record(content: Mapping[str, Any]) -> Record:
    regrets = [math.inf if value is None else value for value in content["regrets"]]
    return Record(**dict(content) | {"regrets": regrets})
