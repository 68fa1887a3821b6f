"""Two studies side by side: their bests, the layouts that ran in both, and what they were made with."""

from __future__ import annotations

import time

from zenith_tune import __version__
from zenith_tune.shell.scripts.opened import training_line
from zenith_tune.study.files import Json
from zenith_tune.study.parameters import Direction
from zenith_tune.study.trial import AGAIN
from zenith_tune.units import count, format_gain, format_seconds, format_value, is_of_time

JOB = ("command", "model", "gbs", "seq", "cluster")
"""What must be the same for a faster study to be the better one."""
JUST_AS_FAST = 0.0005
"""A gain that is written 0.0%."""
MAX_CAUTION = 40
"""Values that are longer together are not written into the sentence that warns of them."""


def compared(first: Json, second: Json) -> Json:
    """Return the comparison of two studies, each as a digest holds it."""
    direction = Direction(first["direction"])
    why_not = _why_not(first, second)
    bests = [_fastest(study) for study in (first, second)]
    gain = None
    if not why_not and bests[0] and bests[1]:
        gain = direction.gain(bests[1]["value"], over=bests[0]["value"])
    noises = [_noise(each, best) for each, best in zip((first, second), bests, strict=True)]
    made_with = [_made_with(study) for study in (first, second)]
    rows = [[name, *(str(each.get(name, "–")) for each in made_with)] for name in {**made_with[0], **made_with[1]}]
    differences = [row for row in rows if row[1] != row[2]]
    return {
        "kind": "compare",
        "made_by": f"zenithtune {__version__}",
        "title": f"{first['name']} and {second['name']} – compared",
        "place": "",
        "now_s": time.time(),
        "unit": first["unit"],
        "direction": str(direction),
        "is_comparable": not why_not,
        "why_no_gain": why_not or ("" if gain is not None else "One of the studies has no trial that succeeded."),
        "gain": gain,
        "verdict": _verdict(gain, first["unit"], noises),
        "caution": _caution(differences),
        "studies": [_study(each) for each in (first, second)],
        "summary": _summary(first, second),
        "common": [] if why_not else _common(first, second, direction),
        "differences": differences,
    }


def describe_gain(study: Json) -> str:
    """Return a study's gain over its own command, which is none where that command is the fastest."""
    if study["gain"] is None:
        return "unknown"
    if study["fastest_is_baseline"]:
        return f"none; the best trial is {format_gain(study['gain'])}{', within the noise' * study['is_within_noise']}"
    if study["best_is_own"]:
        return "none; the best trial has the settings of your own command"
    # The note says first which batches these are.
    note = study["batch_note"].partition(":")[0]
    return format_gain(study["gain"]) + (f" ({note})" if note else "")


def _why_not(first: Json, second: Json) -> str:
    if first["direction"] != second["direction"]:
        return f"The studies aim at opposite ends: {first['direction']} and {second['direction']}."
    units = [each["unit"] for each in (first, second)]
    if units[0] != units[1]:
        return f"The values are in {units[0] or 'no unit'} and in {units[1] or 'no unit'}, which cannot be compared."
    return ""


def _noise(study: Json, best: Json | None) -> float:
    """Return half of a best value's interval, or the difference of two runs of the same settings where it is more."""
    twice = abs(study["gain"] or 0.0) if study["best_is_own"] else 0.0
    return max(twice, (best or {}).get("half_width") or 0.0)


def _verdict(gain: float | None, unit: str, noises: list[float]) -> str:
    """Return how the second best stands to the first, to go between their names; nothing without a gain."""
    if gain is None:
        return ""
    if abs(gain) <= sum(noises) or abs(gain) < JUST_AS_FAST:
        return "as fast as"
    better, worse = ("faster", "slower") if is_of_time(unit) else ("better", "worse")
    return f"{format_gain(abs(gain)).lstrip('+')} {better if gain > 0 else worse} than"


def _caution(differences: list[list[str]]) -> str:
    """Return what of the job itself differs, for whoever reads the verdict alone.

    How the value is read names the batch and the sequence too: it is shown where nothing else distinguishes them.
    """
    found = [row for row in differences if row[0] in JOB] or [row for row in differences if row[0] == "evaluator"]
    shown = [
        f"{name} ({one} and {other})" if len(one) + len(other) <= MAX_CAUTION else name for name, one, other in found
    ]
    return f"They did not do the same job, as these differ: {', '.join(shown)}." if shown else ""


def _fastest(study: Json) -> Json | None:
    number = study["baseline"] if study["fastest_is_baseline"] else study["best_run"]
    return next((trial for trial in study["trials"] if trial["number"] == number and trial["value"]), None)


def _study(study: Json) -> Json:
    """Return a study in short, with where it got better: trial, value and layout."""
    labels = {trial["number"]: trial["label"] for trial in study["trials"]}
    return {
        "name": study["name"],
        "best_command": study["best_command"],
        "last": max((trial["number"] for trial in study["trials"]), default=0),
        "progress": [[number, value, labels.get(number, "")] for number, value in study["progress"]],
    }


def _summary(first: Json, second: Json) -> list[list[str]]:
    rows = []
    for study in (first, second):
        best, cut = _fastest(study), study["num_unfinished"]
        tried = [trial for trial in study["trials"] if not trial["is_baseline"] and trial["rerun_of"] is None]
        took = (study["ended_s"] or study["now_s"]) - study["started_s"] if study["started_s"] else None
        rows.append(
            [
                best["label"].removesuffix(AGAIN) if best else "none",
                format_value(best["value"], study["unit"]) if best else "none",
                describe_gain(study),
                f"{len(tried)}, {sum(trial['value'] is None for trial in tried)} without a value",
                format_seconds(took) if took is not None else "unknown",
                format_seconds(sum((trial["duration_s"] or 0.0) * trial["num_runs"] for trial in study["trials"])),
                f"unfinished: {count(cut, 'trial')} running or cut off" if cut else "ended",
            ]
        )
    names = ("best layout", "best value", "gain over its own command", "trials", "time", "spent in trials", "state")
    return [[name, *pair] for name, *pair in zip(names, *rows, strict=True)]


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
                "label": one["label"].removesuffix(AGAIN),
                "parameters": one["parameters"],
                "values": [one["value"], other["value"]],
                "gain": direction.gain(other["value"], over=one["value"]),
            }
        )
    return sorted(found, key=lambda row: -row["gain"])


def _point(trial: Json) -> tuple[bool, tuple[tuple[str, str], ...]]:
    return trial["is_baseline"], tuple(sorted((name, str(value)) for name, value in trial["parameters"].items()))


def _made_with(study: Json) -> Json:
    """Return what a study was made with, the defaults of its preset written out."""
    header = study["header"]
    named = {name: value for name, value in header.items() if isinstance(value, str)}
    named["command"] = training_line(named["command"])
    strategy = {"strategy": study["strategy"]} if study["strategy"] else {}
    return {**named, **strategy, **header["resolved_args"]}
