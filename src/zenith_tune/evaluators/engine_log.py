"""The steps that DeepSpeed and the Trainer of transformers print themselves, also in jobs that Accelerate starts.

DeepSpeed 0.19 (utils/timer.py, runtime/utils.py), after whatever a logger puts before it:

    epoch=0/micro_step=10/global_step=5, RunningAvgSamplesPerSec=33.1, CurrSamplesPerSec=34.2, MemAllocated=1.2GB,
    MaxMemAllocated=2.3GB                                                              (each rank; older: SamplesPerSec)
    [Rank 0] time (ms) | fwd: 12.30 | bwd: 30.10 | bwd_inner: 29.00 | bwd_allreduce: 1.00 | step: 4.20
    MA 1.2 GB         Max_MA 2.3 GB         CA 2.5 GB         Max_CA 3 GB

The timers of a step are sums over its micro-batches; those named `_microstep` are of one. Its GB are GiB. The Trainer
prints {'loss': '2.31', 'grad_norm': '1.6', 'epoch': '0.01'} at each step with a progress bar before it, and
{'train_runtime': 12.3, 'train_samples_per_second': 5.2, ...} at its end.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict

from zenith_tune.evaluators.base import BATCH
from zenith_tune.evaluators.steps import ENGINE_MARKS, LoggedSteps, Step, first_flaw, read_number
from zenith_tune.study.parameters import Value
from zenith_tune.units import GIB

_NUMBER = r"[-+0-9.einfa]{1,40}"
_SPEED = re.compile(
    r"(?:global_step=|\b[0-9]{1,9}/)([0-9]{1,12}), (?:RunningAvgSamplesPerSec=" + _NUMBER + r", Curr)?SamplesPerSec="
    rf"({_NUMBER})"
)
_TIMERS = re.compile(
    rf"time \(ms\) \| (?:fwd|forward): ({_NUMBER}) \| (?:bwd|backward): ({_NUMBER})(?: \| [^\r\n]{{0,300}}?)??"
    rf" \| step: ({_NUMBER})"
)
_MEMORY = re.compile(r"(?:MaxMemAllocated=|max_mem_allocated: |Max_MA )([0-9]{1,9}(?:\.[0-9]{1,9})?) ?GB")
_SKIPPED = re.compile(r"\bstep=([0-9]{1,12}), skipped=([0-9]{1,12}),")
_RANKS = re.compile(r"\bworld_size \.{3,} ([0-9]{1,7})\b")
_BATCH = re.compile(r"(?<![\w-])train_batch_size \.{3,} ([0-9]{1,9})\b")
_TOTAL = re.compile(rf"train_samples_per_second['\"]?\s{{0,20}}[:=]\s{{0,20}}['\"]?({_NUMBER})")
_TOTAL_STEPS = re.compile(rf"train_steps_per_second['\"]?\s{{0,20}}[:=]\s{{0,20}}['\"]?({_NUMBER})")
_LOSS = re.compile(r"['\"]loss['\"]: ?['\"]?([-+]?(?:nan|inf)\b)", re.IGNORECASE)
_BAR = re.compile(
    r"\b([0-9]{1,9})/([0-9]{1,9}) \[(?:([0-9]{1,4}):)?([0-9]{1,2}):([0-9]{2})<[^,\]\r\n]{1,20}, {1,4}"
    r"([0-9]{1,9}(?:\.[0-9]{1,4})?)(it/s|s/it)"
)
_DICT = re.compile(r"\{'(?:loss|train_runtime|train_loss)': [^{}\r\n]{1,2000}\}")
_PAIR = re.compile(r"'(\w{1,60})': '?([^',}]{1,40})'?")


def read_steps(log: str) -> LoggedSteps:
    """Return the steps by DeepSpeed's throughput lines, else its timers, else a progress bar, else a whole run."""
    sources = (
        ("DeepSpeed's throughput lines", _speed_steps(log)),
        ("DeepSpeed's step timers", _timed_steps(log)),
        ("the progress bar", _bar_steps(log)),
    )
    source, steps = next(((name, steps) for name, steps in sources if steps), ("", []))
    total = _last_positive(_TOTAL, log)
    is_whole_run = not steps and total is not None
    if is_whole_run:
        source, steps = "the Trainer's figure for the whole run", [Step(number=1, samples_per_s=total)]
    extra: dict[str, Value] = {"speed_read_from": source} if source else {}
    if total is not None:
        extra["train_samples_per_second"] = total
    batch = max((int(match[1]) for match in _BATCH.finditer(log)), default=None)
    if batch is not None:
        extra[BATCH] = batch
    peak = max((float(match[1]) for match in _MEMORY.finditer(log)), default=0.0)
    return LoggedSteps(steps=steps, peak_bytes=round(peak * GIB) or None, extra=extra, shows_progress=not is_whole_run)


def read_trainer_steps(log: str) -> LoggedSteps:
    """Return the steps of a Trainer by its progress bar, else by its own figure for the whole run; none of others."""
    if not _DICT.search(log):
        return LoggedSteps()
    rate = _last_positive(_TOTAL_STEPS, log)
    whole = [Step(number=1, seconds=1 / rate)] if rate else []
    return LoggedSteps(steps=_bar_steps(log) or whole)


def is_of_trainer(log: str) -> bool:
    """Tell whether a Trainer printed the steps, and no engine below it."""
    return _DICT.search(log) is not None and not any(mark in log for mark in ENGINE_MARKS)


def trainer_flaws(log: str) -> list[tuple[int, str | None]]:
    """Return where the Trainer logged a step, and the loss or gradient of it that is not finite."""
    return [(match.start(), first_flaw(dict(_PAIR.findall(match[0])))) for match in _DICT.finditer(log)]


def _speed_steps(log: str) -> list[Step]:
    """Return the steps in order, each once: every rank prints its own line, and some come late."""
    found: dict[int, Step] = {}
    for match in _SPEED.finditer(log):
        speed = read_number(match[2])
        if speed is not None and math.isfinite(speed) and speed > 0:
            number = int(match[1])
            found.setdefault(number, Step(number=number, samples_per_s=speed, position=match.start()))
    return [found[number] for number in sorted(found)]


def _timed_steps(log: str) -> list[Step]:
    """Return the steps by their timers: forward, backward and the optimizer."""
    found: list[Step] = []
    for match in _TIMERS.finditer(log):
        parts = [read_number(text) for text in match.groups()]
        seconds = sum(part for part in parts if part is not None) / 1000
        if None not in parts and math.isfinite(seconds) and seconds > 0:
            found.append(Step(number=len(found) + 1, seconds=seconds, position=match.start()))
    return found


def _bar_steps(log: str) -> list[Step]:
    """Return the steps of the longest progress bar, which is that of training."""
    bars: dict[int, dict[int, Step]] = defaultdict(dict)
    ages: dict[int, int] = {}
    for match in _BAR.finditer(log):
        done, total, rate = int(match[1]), int(match[2]), float(match[6])
        if done and rate:
            ages[total] = int(match[3] or 0) * 3600 + int(match[4]) * 60 + int(match[5])
            seconds = 1 / rate if match[7] == "it/s" else rate
            bars[total].setdefault(done, Step(number=done, seconds=seconds, position=match.start()))
    return list(bars[max(ages, key=ages.__getitem__)].values()) if ages else []


def _last_positive(pattern: re.Pattern[str], log: str) -> float | None:
    values = [read_number(match[1]) for match in pattern.finditer(log)]
    found = [value for value in values if value is not None and math.isfinite(value) and value > 0]
    return found[-1] if found else None


def flaw(log: str) -> str | None:
    """Return why a run that continues has no value, in one line: no finite loss, or no step that counts."""
    if match := _LOSS.search(log):
        return f"NaN: the loss is {match[1].lower()}"
    steps = [(int(match[1]), int(match[2])) for match in _SKIPPED.finditer(log)]
    if steps and steps[-1][0] > 1 and steps[-1][1] >= steps[-1][0]:
        return f"all {steps[-1][0]} steps were skipped, because gradients overflow in fp16"
    return None


def num_ranks(log: str) -> int | None:
    """Return how many ranks DeepSpeed says it trains on."""
    return max((int(match[1]) for match in _RANKS.finditer(log)), default=None)
