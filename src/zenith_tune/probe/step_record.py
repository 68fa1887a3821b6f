"""What a rank under probe notes of itself, and what its log tells where it notes nothing."""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zenith_tune.evaluators.iterations import peak_memory_bytes, read_megatron_lines
from zenith_tune.measured.believable import is_memory, is_step
from zenith_tune.regular_file import open_regular
from zenith_tune.study.trial_log import clean_line
from zenith_tune.units import MIB

MAX_BYTES = 4 * MIB
MOST = 2**60
"""No clock shows more."""
MOST_LETTERS = 80
"""Of the name of a GPU."""
LOG_SKIPPED = 2
"""Lines of a log that hold the start: Megatron prints its first iteration alone, and counts it again in the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """Hold the steps of one rank, and the most memory that it had until the last of them."""

    steps_s: tuple[float, ...] = ()
    """Seconds of each whole step after the first, which holds the start."""
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    device_bytes: int | None = None
    """All that is taken of the device, the CUDA context included."""
    gpu: str = ""
    source: str = "nothing"
    """hook, log or nothing."""

    def cut_to(self, num_steps: int) -> StepRecord:
        """Return the record with no more steps than were asked for: fast ones go on until somebody looks."""
        return replace(self, steps_s=self.steps_s[:num_steps])

    @property
    def step_s(self) -> float | None:
        """The usual step, or None where none was seen."""
        return statistics.median(self.steps_s) if self.steps_s else None


def read_record(path: Path) -> StepRecord:
    """Read what the hook wrote; lines that are torn or none of its own are left out."""
    lines = [line for line in _lines(path) if _seconds(line) is not None]
    if not lines:
        return StepRecord()
    # A model with experts has two optimizers, which step one after the other: the first one's steps are counted.
    ends = [_seconds(line) or 0.0 for line in lines if line.get("optimizer") == lines[0].get("optimizer")]
    steps = [after - before for before, after in itertools.pairwise(ends)]
    return StepRecord(
        steps_s=tuple(step for step in steps if is_step(step)),
        allocated_bytes=_most(lines, "allocated"),
        reserved_bytes=_most(lines, "reserved"),
        device_bytes=_most(lines, "device"),
        gpu=clean_line(str(lines[-1].get("gpu", "")), MOST_LETTERS),
        source="hook",
    )


def read_log(log: str) -> StepRecord:
    """Read the iteration lines and memory reports of a rank that prints them."""
    lines = read_megatron_lines(log)
    if not lines:
        return StepRecord()
    reserved = peak_memory_bytes(log, lines)
    return StepRecord(
        steps_s=tuple(line.seconds for line in lines[LOG_SKIPPED:] if is_step(line.seconds)),
        reserved_bytes=reserved if reserved is not None and is_memory(reserved) else None,
        source="log",
    )


def _lines(path: Path) -> list[Mapping[str, Any]]:
    try:
        with open_regular(path) as file:
            text = file.read(MAX_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return []
    found: list[Mapping[str, Any]] = []
    for line in text.split("\n")[:-1]:
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(value := json.loads(line), dict):
                found.append(value)
    return found


def _seconds(line: Mapping[str, Any]) -> float | None:
    value = line.get("seconds")
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < MOST:
        return None
    return float(value)


def _most(lines: Sequence[Mapping[str, Any]], name: str) -> int | None:
    values = (line.get(name) for line in lines)
    return max((value for value in values if type(value) is int and is_memory(value)), default=None)
