"""What DeepSpeed and the Hugging Face Trainer print of a training run's speed and memory.

DeepSpeed 0.19 (utils/timer.py, runtime/utils.py), after whatever a logger puts before it:

    epoch=0/micro_step=10/global_step=5, RunningAvgSamplesPerSec=33.1, CurrSamplesPerSec=34.2, MemAllocated=1.2GB,
    MaxMemAllocated=2.3GB                                                              (each rank; older: SamplesPerSec)
    [Rank 0] time (ms) | fwd: 12.30 | bwd: 30.10 | bwd_inner: 29.00 | bwd_allreduce: 1.00 | step: 4.20
    MA 1.2 GB         Max_MA 2.3 GB         CA 2.5 GB         Max_CA 3 GB

The timers of a step are sums over its micro-batches; those named `_microstep` are of one. A GB of theirs is a GiB.
The Trainer prints {'train_runtime': 12.3, 'train_samples_per_second': 5.2, ...} at its end, with a progress bar before.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass

from zenith_tune.evaluators.iterations import read_number
from zenith_tune.units import GIB

_NUMBER = r"[-+\d.einfa]{1,40}"
_SPEED = re.compile(
    r"(?:global_step=|\b\d{1,9}/)(\d{1,12}), (?:RunningAvgSamplesPerSec=" + _NUMBER + r", Curr)?SamplesPerSec="
    rf"({_NUMBER})"
)
_TIMERS = re.compile(
    rf"time \(ms\) \| (?:fwd|forward): ({_NUMBER}) \| (?:bwd|backward): ({_NUMBER})(?: \| [^\r\n]{{0,300}}?)??"
    rf" \| step: ({_NUMBER})"
)
_MEMORY = re.compile(r"(?:MaxMemAllocated=|max_mem_allocated: |Max_MA )(\d{1,9}(?:\.\d{1,9})?) ?GB")
_SKIPPED = re.compile(r"\bstep=(\d{1,12}), skipped=(\d{1,12}),")
_RANKS = re.compile(r"\bworld_size \.{3,} (\d{1,7})\b")
_BATCH = re.compile(r"(?<![\w-])train_batch_size \.{3,} (\d{1,9})\b")
_TOTAL = re.compile(rf"train_samples_per_second['\"]?\s{{0,20}}[:=]\s{{0,20}}['\"]?({_NUMBER})")
_LOSS = re.compile(r"['\"]loss['\"]: ?['\"]?([-+]?(?:nan|inf)\b)", re.IGNORECASE)
_BAR = re.compile(
    r"\b(\d{1,9})/(\d{1,9}) \[(?:(\d{1,4}):)?(\d{1,2}):(\d{2})<[^,\]\r\n]{1,20}, {1,4}"
    r"(\d{1,9}(?:\.\d{1,4})?)(it/s|s/it)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedLine:
    """Hold the speed of one step."""

    step: int
    samples_per_s: float


def speed_lines(log: str) -> list[SpeedLine]:
    """Return the steps in order, each once: every rank prints its own line, and some come late."""
    found: dict[int, float] = {}
    for match in _SPEED.finditer(log):
        speed = read_number(match[2])
        if speed is not None and math.isfinite(speed) and speed > 0:
            found.setdefault(int(match[1]), speed)
    return [SpeedLine(step=step, samples_per_s=found[step]) for step in sorted(found)]


def timed_steps(log: str) -> list[float]:
    """Return the seconds of each step that DeepSpeed's timers took: forward, backward and the optimizer."""
    found = []
    for match in _TIMERS.finditer(log):
        parts = [read_number(text) for text in match.groups()]
        seconds = sum(part for part in parts if part is not None) / 1000
        if None not in parts and math.isfinite(seconds) and seconds > 0:
            found.append(seconds)
    return found


def bar_steps(log: str) -> list[float]:
    """Return the seconds per step that the longest progress bar of the log showed, once for each step."""
    bars: dict[int, dict[int, float]] = defaultdict(dict)
    ages: dict[int, int] = {}
    for match in _BAR.finditer(log):
        done, total, rate = int(match[1]), int(match[2]), float(match[6])
        if not done or not rate:
            continue
        ages[total] = int(match[3] or 0) * 3600 + int(match[4]) * 60 + int(match[5])
        bars[total].setdefault(done, 1 / rate if match[7] == "it/s" else rate)
    return list(bars[max(ages, key=ages.__getitem__)].values()) if ages else []


def total_samples_per_s(log: str) -> float | None:
    """Return the Trainer's own figure for the whole run, warm-up and data included."""
    values = [read_number(match[1]) for match in _TOTAL.finditer(log)]
    found = [value for value in values if value is not None and math.isfinite(value) and value > 0]
    return found[-1] if found else None


def peak_memory_bytes(log: str) -> int | None:
    """Return the most that any rank had allocated at any moment of a step, where the log tells."""
    peak = max((float(match[1]) for match in _MEMORY.finditer(log)), default=0.0)
    return round(peak * GIB) or None


def flaw(log: str) -> str | None:
    """Return why a run is worth nothing although it goes on, in one line: no finite loss, or no step that counts."""
    if match := _LOSS.search(log):
        return f"NaN: the loss is {match[1].lower()}"
    steps = [(int(match[1]), int(match[2])) for match in _SKIPPED.finditer(log)]
    if steps and steps[-1][0] > 1 and steps[-1][1] >= steps[-1][0]:
        return f"all {steps[-1][0]} steps were skipped, because gradients overflow in fp16"
    return None


def trained_batch(log: str) -> int | None:
    """Return the samples of a step as DeepSpeed says them at its start, where it does."""
    found = [int(match[1]) for match in _BATCH.finditer(log)]
    return max(found, default=None)


def num_ranks(log: str) -> int | None:
    """Return how many ranks DeepSpeed says it trains on, where it says so."""
    found = [int(match[1]) for match in _RANKS.finditer(log)]
    return max(found, default=None)
