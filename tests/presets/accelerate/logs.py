"""Lines that the hook of a trial writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from zenith_tune.hooks.process import PREFIX


def prepared(process: str = "host:1", **values: Any) -> str:
    event = {
        "event": "prepared",
        "process": process,
        "version": "1.15.0",
        "type": "MULTI_GPU",
        "processes": 2,
        "wrapper": "DistributedDataParallel",
        "accumulation": 1,
        "batch_sizes": [4],
        "settings": {},
    }
    return PREFIX + json.dumps({**event, **values}) + "\n"


def pair(**values: Any) -> str:
    """Return what two ranks write."""
    return prepared("host:1", **values) + prepared("host:2", **values)


def steps(seconds: Sequence[float], passes: int = 1, **values: Any) -> str:
    """Return the lines of steps that took so long each, after one whose beginning nobody saw."""
    at, lines = 100.0, []
    for number, took in enumerate([0.0, *seconds], start=1):
        at += took
        event = {"event": "step", "step": number, "passes": passes, "seconds": at, **values}
        lines.append(PREFIX + json.dumps(event) + "\n")
    return "".join(lines)


def epochs(of: Sequence[tuple[int, float]], num: int) -> str:
    """Return the lines of epochs whose steps are of so many passes and took so long, the last at the loader's end."""
    at, lines = 100.0, []
    for number in range(num * len(of)):
        passes, took = of[number % len(of)]
        at += took
        event = {"event": "step", "step": number + 1, "passes": passes, "seconds": at}
        is_end = number % len(of) == len(of) - 1
        lines.append(PREFIX + json.dumps({**event, "is_end": is_end}) + "\n")
    return "".join(lines)
