"""Two studies side by side: their bests, the layouts that ran in both, and what they were made with."""

from __future__ import annotations

import time
from typing import Any

from zenith_tune import __version__
from zenith_tune.direction import Direction
from zenith_tune.units import count, format_gain, format_seconds, format_value

Json = dict[str, Any]


def compared(first: Json, second: Json) -> Json:
    """Return the comparison of two studies, each as a digest tells it."""
    direction = Direction(first["direction"])
    why_not = _why_not(first, second)
    bests = [_fastest(study) for study in (first, second)]
    gain = None
    if not why_not and bests[0] and bests[1]:
        gain = direction.gain(bests[1]["value"], over=bests[0]["value"])
    return {
        "kind": "compare",
        "made_by": f"zenithtune {__version__}",
        "title": f"{first['name']} and {second['name']} – compared",
        "place": "",
        "now_s": time.time(),
        "unit": first["unit"],
        "direction": str(direction),
        "is_comparable": not why_not,
        "why_no_gain": why_not or ("" if gain is not None else "One of the studies has no trial that went well."),
        "gain": gain,
        "studies": [_study(each) for each in (first, second)],
        "summary": _summary(first, second),
        "common": [] if why_not else _common(first, second, direction),
        "differences": _differences(first, second),
    }


def gain_words(study: Json) -> str:
    """Return a study's gain over its own command, which is none where that command is the fastest."""
    if study["gain"] is None:
        return "unknown"
    if study["fastest_is_baseline"]:
        return f"none; the best trial is {format_gain(study['gain'])}"
    return format_gain(study["gain"])


def _why_not(first: Json, second: Json) -> str:
    if first["direction"] != second["direction"]:
        return f"The studies aim at opposite ends: {first['direction']} and {second['direction']}."
    units = [each["unit"] for each in (first, second)]
    if units[0] != units[1]:
        return f"The values are in {units[0] or 'no unit'} and in {units[1] or 'no unit'}, which cannot be compared."
    return ""


def _fastest(study: Json) -> Json | None:
    number = study["baseline"] if study["fastest_is_baseline"] else study["best"]
    return next((trial for trial in study["trials"] if trial["number"] == number and trial["value"]), None)


def _study(study: Json) -> Json:
    return {
        "name": study["name"],
        "best_command": study["best_command"],
        "num_trials": len(study["trials"]),
        "progress": _progress(study),
    }


def _progress(study: Json) -> list[list[Any]]:
    """Return where a study got better: place, value and layout."""
    direction = Direction(study["direction"])
    found: list[list[Any]] = []
    for place, trial in enumerate(study["trials"]):
        if trial["value"] is not None and (not found or direction.better(trial["value"], than=found[-1][1])):
            found.append([place, trial["value"], trial["label"]])
    return found


def _summary(first: Json, second: Json) -> list[list[str]]:
    rows = []
    for study in (first, second):
        best, tried = _fastest(study), [trial for trial in study["trials"] if not trial["is_baseline"]]
        took = (study["ended_s"] or study["now_s"]) - study["started_s"] if study["started_s"] else None
        rows.append(
            [
                best["label"] if best else "none",
                format_value(best["value"], study["unit"]) if best else "none",
                gain_words(study),
                f"{len(tried)}, {sum(trial['value'] is None for trial in tried)} without a value",
                format_seconds(took) if took is not None else "unknown",
                _state(study),
            ]
        )
    names = ("best layout", "best value", "gain over its own command", "trials", "time", "state")
    return [[name, *pair] for name, *pair in zip(names, *rows, strict=True)]


def _state(study: Json) -> str:
    cut = study["num_unfinished"]
    return f"unfinished: {count(cut, 'trial')} running or cut off" if cut else "ended"


def _common(first: Json, second: Json, direction: Direction) -> list[Json]:
    """Return the points that went well in both, by their parameters; of a repeated one the last time counts."""
    known = {_point(trial): trial for trial in first["trials"] if trial["value"]}
    others = {_point(trial): trial for trial in second["trials"] if trial["value"]}
    found = []
    for key, point in enumerate(point for point in known if point in others):
        one, other = known[point], others[point]
        found.append(
            {
                "key": key,
                "label": one["label"],
                "parameters": one["parameters"],
                "values": [one["value"], other["value"]],
                "gain": direction.gain(other["value"], over=one["value"]),
            }
        )
    return sorted(found, key=lambda row: -row["gain"])


def _point(trial: Json) -> tuple[bool, tuple[tuple[str, str], ...]]:
    return trial["is_baseline"], tuple(sorted((name, str(value)) for name, value in trial["parameters"].items()))


def _differences(first: Json, second: Json) -> list[list[str]]:
    flat = [{**study["header"], **study["header"]["args"]} for study in (first, second)]
    names = [name for name in dict.fromkeys([*flat[0], *flat[1]]) if name != "args"]
    pairs = [(name, *(str(each.get(name, "–")) for each in flat)) for name in names]
    return [list(row) for row in pairs if row[1] != row[2]]
