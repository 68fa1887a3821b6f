"""A study, or two of them compared, as Markdown: to be pasted where people talk."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from zenith_tune.report.study_comparison import gain_words
from zenith_tune.units import count, format_bytes, format_gain, format_seconds, format_spread, format_value

MAX_ROWS = 20
MAX_CELL = 120
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!&@])")

Json = dict[str, Any]


def study_markdown(study: Json) -> str:
    """Return a study in short: the best, its command, the best trials, what failed, what the doctor says."""
    shown = _best_first(study)[:MAX_ROWS]
    parts = [
        f"## Study {escaped(study['name'])}",
        _headline(study),
        *([fenced(study["best_command"])] if study["best_command"] else []),
        _table(
            ["trial", "layout", "state", study["unit"] or "value", "gain", "step", "memory"],
            [_row(trial, study) for trial in shown],
        ),
    ]
    if (rest := len(study["trials"]) - len(shown)) > 0:
        parts.append(f"{count(rest, 'more trial')} not shown.")
    if study["failures"]:
        parts += ["### Failures", "\n".join(_failure(group) for group in study["failures"])]
    if study["doctor"]:
        parts += ["### What the doctor says", fenced("\n".join(study["doctor"]))]
    parts.append(f"Preset {escaped(study['header']['preset'])}, {escaped(study['header']['evaluator'])}.")
    return "\n\n".join(parts) + "\n"


def comparison_markdown(comparison: Json) -> str:
    """Return two studies side by side."""
    names = [each["name"] for each in comparison["studies"]]
    gain = comparison["gain"]
    verdict = (
        f"**{escaped(names[1])}** is {_faster(gain)} than **{escaped(names[0])}** at its best."
        if gain is not None
        else comparison["why_no_gain"]
    )
    parts = [f"## {escaped(names[0])} and {escaped(names[1])}", verdict, _table(["", *names], comparison["summary"])]
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
    r"""Return text in which nothing is Markdown or HTML, on one line.

    >>> escaped("a|b <img> *c*")
    'a\\|b \\<img\\> \\*c\\*'
    """
    return _SPECIAL.sub(r"\\\1", " ".join(str(text).split()))


def fenced(text: str) -> str:
    """Return text between fences that are longer than any inside it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _headline(study: Json) -> str:
    number = study["baseline"] if study["fastest_is_baseline"] else study["best"]
    best = next((trial for trial in study["trials"] if trial["number"] == number), None)
    tried = [trial for trial in study["trials"] if not trial["is_baseline"]]
    counts = f"{count(len(tried), 'trial')}, {study['num_failed']} failed"
    counts += f", {study['num_cancelled']} cancelled" if study["num_cancelled"] else ""
    counts += ", unfinished" if study["num_unfinished"] else ""
    if best is None:
        return f"No trial went well yet ({counts})."
    value = f"{format_value(best['value'], study['unit'])}{format_spread(best['spread'])}"
    if study["fastest_is_baseline"]:
        gain = "" if study["gain"] is None else f" Gain: {gain_words(study)} against your own command."
        return f"Best: your own command, {escaped(value)} ({counts}).{gain}"
    gain = f", **{format_gain(study['gain'])}** over your own command" if study["gain"] is not None else ""
    return f"Best: **{escaped(best['label'])}**, {escaped(value)}{gain} ({counts})."


def _faster(gain: float) -> str:
    return f"{format_gain(abs(gain)).lstrip('+')} {'faster' if gain >= 0 else 'slower'}"


def _best_first(study: Json) -> list[Json]:
    sign = 1 if study["direction"] == "minimize" else -1
    return sorted(study["trials"], key=lambda trial: (trial["value"] is None, sign * (trial["value"] or 0)))


def _row(trial: Json, study: Json) -> list[str]:
    gain, step, memory = trial["gain"], trial["step_s"], trial["memory_bytes"]
    return [
        "yours" if trial["is_baseline"] else str(trial["number"]),
        trial["label"],
        trial["state"],
        "" if trial["value"] is None else format_value(trial["value"]) + format_spread(trial["spread"]),
        "" if gain is None or trial["is_baseline"] else format_gain(gain),
        "" if step is None else format_seconds(step),
        "" if memory is None else format_bytes(memory),
    ]


def _failure(group: Json) -> str:
    numbers = ", ".join(map(str, group["numbers"][:8])) + ("…" if len(group["numbers"]) > 8 else "")
    return f"- {len(group['numbers'])} {escaped(group['kind'])} (trial {numbers}): {_cell(group['causes'][0]['text'])}"


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
