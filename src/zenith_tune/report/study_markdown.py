"""A study, or two of them compared, as Markdown: to be pasted where people talk."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from zenith_tune.report.study_comparison import describe_gain
from zenith_tune.report.trial_row import trial_cells
from zenith_tune.study.files import Json
from zenith_tune.study.parameters import Direction
from zenith_tune.units import count, format_gain, format_range, format_value

MAX_ROWS = 20
MAX_CELL = 120
COLUMNS = ("trial", "layout", "state", "value and spread", "gain", "step", "memory")
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!&@])")


def study_markdown(study: Json) -> str:
    """Return a study in short: the best, its command, the best trials, what failed, the diagnosis."""
    shown = best_first(study)[:MAX_ROWS]
    parts = [
        f"## Study {escaped(study['name'])}",
        _headline(study),
        *([f"Note: {escaped(study['batch_note'])}."] if study["batch_note"] else []),
        *([f"Changed: {escaped(changed)}."] if (changed := study["standing"]["changes"]) else []),
        *([own] if (own := _own_failure(study)) else []),
        *([fenced(study["best_command"])] if study["best_command"] else []),
        _table(
            ["trial", "layout", "state", study["unit"] or "value", "gain", "step", "memory"],
            [trial_cells(trial, *COLUMNS) for trial in shown],
        ),
    ]
    if (rest := len(study["trials"]) - len(shown)) > 0:
        parts.append(f"{count(rest, 'more trial')} not shown.")
    for table in study["findings"]:
        parts += _findings(table)
    if study["failures"]:
        names = {trial["number"]: "" if trial["is_baseline"] else trial["name"] for trial in study["trials"]}
        parts += ["### Failures", "\n".join(_failure(group, names) for group in study["failures"])]
    if study["doctor"]:
        parts += ["### Diagnosis", fenced("\n".join(study["doctor"]))]
    strategy = [f"strategy {escaped(study['strategy'])}"] if study["strategy"] else []
    made_with = [f"Preset {escaped(study['header']['preset'])}", *strategy, escaped(study["header"]["evaluator"])]
    parts.append(f"{', '.join(made_with)}.")
    if study["stopped"]:
        parts.append(f"Stopped: {escaped(study['stopped'])}.")
    if study["verdict"]:
        parts.append(f"Verdict: {escaped(study['verdict'])}.")
    return "\n\n".join(parts) + "\n"


def comparison_markdown(comparison: Json) -> str:
    """Return two studies side by side."""
    names = [each["name"] for each in comparison["studies"]]
    verdict = (
        f"**{escaped(names[1])}** is {comparison['verdict']} **{escaped(names[0])}** at its best."
        if comparison["verdict"]
        else comparison["why_no_gain"]
    )
    parts = [f"## {escaped(names[0])} and {escaped(names[1])}", verdict]
    parts += [escaped(comparison["caution"])] if comparison["caution"] else []
    parts.append(_table(["", *names], comparison["summary"]))
    if comparison["common"]:
        unit = comparison["unit"]
        rows = [
            [row["label"], *(format_value(value, unit) for value in row["values"]), format_gain(row["gain"])]
            for row in comparison["common"][:MAX_ROWS]
        ]
        parts += ["### Layouts that ran in both", _table(["layout", *names, "gain"], rows)]
    if comparison["differences"]:
        parts += ["### What differs", _table(["", *names], comparison["differences"])]
    return "\n\n".join(parts) + "\n"


def escaped(text: object) -> str:
    """Return text in which nothing is Markdown or HTML, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(str(text).split()))


def fenced(text: str) -> str:
    """Return text between fences that are longer than any inside it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _headline(study: Json) -> str:
    number = study["baseline"] if study["fastest_is_baseline"] else study["best_run"]
    best = next((trial for trial in study["trials"] if trial["number"] == number), None)
    tried = [trial for trial in study["trials"] if not trial["is_baseline"] and trial["rerun_of"] is None]
    counts = f"{count(len(tried), 'trial')}, {study['num_failed']} failed"
    counts += f", {study['num_cancelled']} cancelled" if study["num_cancelled"] else ""
    counts += ", unfinished" if study["num_unfinished"] else ""
    if best is None:
        return f"No trial has succeeded yet ({counts})."
    value = f"{format_value(best['value'], study['unit'])}{format_range(best['half_width'])}"
    if study["fastest_is_baseline"]:
        gain = "" if study["gain"] is None else f" Gain: {describe_gain(study)} against your own command."
        return f"Best: your own command, {escaped(value)} ({counts}).{gain}"
    gain = f", **{format_gain(study['gain'])}** over your own command" if study["gain"] is not None else ""
    if study["best_is_own"]:
        gain = ", with the settings of your own command: no gain"
    again = ", confirmed by repeated runs" if study["best_reruns"] else ""
    first = next((trial for trial in study["trials"] if trial["number"] == study["best"]), best)
    name = f"Best: trial {best['name']}, **{escaped(first['label'])}**"
    return f"{name}, {escaped(value)}{gain}{again} ({counts})."


def best_first(study: Json) -> list[Json]:
    """Return the trials of a study in order, those without a value last."""
    sign = Direction(study["direction"]).sign
    return sorted(study["trials"], key=lambda trial: (trial["value"] is None, sign * (trial["value"] or 0)))


def _failure(group: Json, names: Mapping[int, str]) -> str:
    """Return a kind of failure and who had it; your own command has no name."""
    called = [names[number] for number in group["numbers"]]
    trials = [name for name in called if name]
    shown = ", ".join(trials[:8]) + ("…" if len(trials) > 8 else "")
    who = [*(["your command"] if "" in called else []), *([f"trial {shown}"] if trials else [])]
    cause = _cell(group["causes"][0]["text"])
    return f"- {len(group['numbers'])} {escaped(group['kind'])} ({', '.join(who)}): {cause}"


def _own_failure(study: Json) -> str:
    """Say how the user's own command failed; nothing where it went well, or was not run."""
    own = next((trial for trial in study["trials"] if trial["number"] == study["baseline"]), None)
    if own is None or own["value"] is not None or own["state"] == "running":
        return ""
    cause = f": {_cell(own['cause'])}" if own["cause"] else ""
    return f"Your own command failed ({escaped(own['failure'] or own['state'])}){cause}"


def _findings(table: Json) -> list[str]:
    """Return what a strategy closed with: its table, as long as that of the trials, and its notes."""
    parts = [f"### {escaped(table['title'][:1].upper() + table['title'][1:])}"]
    if table["rows"]:
        parts.append(_table(table["columns"], table["rows"][:MAX_ROWS]))
    if (rest := len(table["rows"]) - MAX_ROWS) > 0:
        parts.append(f"{count(rest, 'more row')} not shown.")
    return parts + ["\n".join(f"- {escaped(line)}" for line in table["notes"])] * bool(table["notes"])


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    is_rule = [index == 1 for index in range(len(lines))]
    return "\n".join(
        "| " + " | ".join(cell if rule else _cell(cell) for cell in line) + " |"
        for line, rule in zip(lines, is_rule, strict=True)
    )


def _cell(text: str) -> str:
    flat = " ".join(str(text).split())
    return escaped(flat if len(flat) <= MAX_CELL else flat[: MAX_CELL - 1] + "…")


CSV_COLUMNS = ("number", "label", "state", "is_baseline", "value", "unit", "spread", "gain", "step_s", "memory_bytes")
REST = ("duration_s", "started_s", "ended_s", "early", "failure", "cause", "why", "command", "folder")
PREDICTED = ("step_s", "memory_bytes", "oom_probability")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def trial_columns(study: Json) -> list[str]:
    """Return the names of what `trial_rows` yields."""
    return [*CSV_COLUMNS, *(f"predicted_{name}" for name in PREDICTED), *study["parameters"], *REST]


def trial_rows(study: Json) -> Iterator[list[Any]]:
    """Yield every trial of a study, running ones too, with its parameters and predictions; None is not known."""
    for trial in study["trials"]:
        row = {**trial, "unit": study["unit"]}
        predicted = trial["predicted"] or {}
        cells = [*(row[name] for name in CSV_COLUMNS), *(predicted.get(name) for name in PREDICTED)]
        cells += [trial["parameters"].get(name) for name in study["parameters"]]
        yield [*cells, *(row[name] for name in REST)]


def study_csv(study: Json) -> str:
    """Return the table of all trials as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in (trial_columns(study), *trial_rows(study)):
        # An apostrophe keeps a spreadsheet from running what a log or a parameter says.
        writer.writerow([f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell for cell in row])
    return text.getvalue()
