"""The steps in the logs of Megatron-LM (2.5 to 0.20), ms-swift and Megatron-Bridge.

A line is ` iteration        5/     100 | name: value | name: value |...`, after whatever a launcher or a clock put
before it. Fields come and go between versions, so they are read by name. The elapsed time is the mean since the
previous print, and so are the counters of skipped and NaN iterations; Megatron-LM 0.20 prints iteration 1 by itself
and then counts it once more in the next line.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from zenith_tune.evaluators.base import BATCH
from zenith_tune.evaluators.short_steps import as_whole
from zenith_tune.evaluators.steps import LoggedSteps, Step, first_flaw, gib_to_bytes, read_number
from zenith_tune.presets.megatron.swift_log import read_swift_steps
from zenith_tune.study.parameters import Value
from zenith_tune.units import MIB, whole

# The pattern starts with a plain word, which lets the search skip quickly over megabytes of other text.
_START = re.compile(r"iteration[ \t]{1,20}([0-9]{1,12})/[ \t]{0,20}([0-9]{1,12})[ \t]{0,4}\|")
# A report of one rank: `[Rank 0] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0 | ...`, to
# which Megatron-LM 0.20 may add ` | total device memory used: 5.0`.
# Megatron-Bridge's is in units of 10^9 bytes: `memory (GB) | mem-max-reserved-gigabytes: 2.0 | ...`.
_REPORT = r"memory \((MB|GB)\)[^\r\n]{{0,400}}?\bmax[ -]{}(?:-gigabytes)?: ([0-9]{{1,12}}(?:\.[0-9]{{1,6}})?)"
_RESERVED = re.compile(_REPORT.format("reserved"))
_ALLOCATED = re.compile(_REPORT.format("allocated"))
_BRIDGE = re.compile(r"Step Time : ([0-9.]{1,12})s GPU utilization: ([0-9.]{1,12})MODEL_TFLOP/s/GPU")
_MAX_LINE = 16 * 1024
_UNITS = {"MB": MIB, "GB": 10**9}
ELAPSED_MS = "elapsed time per iteration (ms)"
THROUGHPUT = "throughput per GPU (TFLOP/s/GPU)"


def read_steps(log: str) -> LoggedSteps:
    """Return the steps of the log's last run, with the memory that any rank had."""
    found = (_step(match, fields) for match, fields in _lines(log))
    steps = last_run([step for step in found if step is not None]) or read_swift_steps(log)
    reserved, allocated = (
        [round(float(match[2]) * _UNITS[match[1]]) for match in pattern.finditer(log)]
        for pattern in (_RESERVED, _ALLOCATED)
    )
    extra: dict[str, Value] = {"peak_allocated_bytes": most} if (most := max(allocated, default=0)) else {}
    peak = max([*reserved, *(step.memory_bytes for step in steps if step.memory_bytes)], default=None)
    logged = as_whole(LoggedSteps(steps=steps, peak_bytes=peak), log)
    if logged.steps and (batch := logged.steps[-1].samples):
        extra[BATCH] = batch
    return replace(logged, extra=extra)


def read_bridge_steps(log: str) -> LoggedSteps:
    """Return the steps by the lines that Megatron-Bridge prints next to Megatron's own."""
    figures = ((read_number(match[1]), match.start()) for match in _BRIDGE.finditer(log))
    steps = [Step(number=at, seconds=s, position=start) for at, (s, start) in enumerate(figures, start=1) if s]
    return LoggedSteps(steps=steps)


def last_run(steps: Sequence[Step]) -> list[Step]:
    """Return the steps after the last restart, each once: a launcher may restart, a log may be doubled."""
    kept: list[Step] = []
    for step in steps:
        if kept and step.number < kept[-1].number:
            kept = []
        if not kept or step.number > kept[-1].number:
            kept.append(step)
    return kept


def _lines(log: str) -> Iterator[tuple[re.Match[str], dict[str, str]]]:
    """Yield each iteration line with its fields; two that run into one line are separated."""
    starts = (match for match in _START.finditer(log) if not log[match.start() - 1 : match.start()].isalnum())
    for match, following in itertools.pairwise(itertools.chain(starts, [None])):
        assert match is not None
        end = min(following.start() if following else len(log), match.end() + _MAX_LINE)
        segment = log[match.end() : end]
        yield match, _fields(segment.partition("\n")[0].partition("\r")[0])


def _fields(segment: str) -> dict[str, str]:
    """Return the `name: value` fields between the bars; the first of a name wins."""
    fields: dict[str, str] = {}
    for part in segment.split("|"):
        name, colon, value = part.rpartition(":")
        if colon:
            fields.setdefault(" ".join(name.split()), value.strip())
    return fields


def _step(match: re.Match[str], fields: Mapping[str, str]) -> Step | None:
    """Return the step of a line, or None where it is torn and has no elapsed time."""
    elapsed_ms = read_number(fields.get(ELAPSED_MS, ""))
    if elapsed_ms is None:
        return None
    return Step(
        number=int(match[1]),
        seconds=elapsed_ms / 1000,
        tflops=read_number(fields.get(THROUGHPUT, "")),
        samples=whole(fields.get("global batch size", "")) or None,
        memory_bytes=gib_to_bytes(fields.get("memory(GiB)")),
        num_skipped=whole(fields.get("number of skipped iterations", "")) or 0,
        num_nan=whole(fields.get("number of nan iterations", "")) or 0,
        flaw=first_flaw(fields),
        has_loss="lm loss" in fields,
        position=match.start(),
        is_last=int(match[1]) == int(match[2]),
    )
