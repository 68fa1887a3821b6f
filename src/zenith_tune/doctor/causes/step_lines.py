"""The lines that trainers print at each step: Megatron-LM, Hugging Face's Trainer, torchtitan, Megatron-Bridge.

The Trainer prints a dict a line, `{'loss': '2.31', 'grad_norm': '1.6', 'epoch': '0.01'}`, beside tqdm's bars;
torchtitan
`step:  1  loss:  8.12  grad_norm:  1.2  memory: 12.34GiB(15.60%)  tps: 7,123  tflops: 412.10  mfu: 41.67%` behind a
clock, and Megatron-Bridge `Step Time : 1.23s GPU utilization: 456.7MODEL_TFLOP/s/GPU` beside Megatron's own lines.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from zenith_tune.evaluators.iterations import (
    after_iterations,
    gib_to_bytes,
    has_iterations,
    peak_memory_bytes,
    read_megatron_lines,
    read_number,
)
from zenith_tune.evaluators.steady import long_run, num_warm_up

_DICT = re.compile(r"\{'(?:loss|train_runtime|train_loss)': [^{}\r\n]{1,2000}\}")
_PAIR = re.compile(r"'(\w{1,60})': '?([^',}]{1,40})'?")
_BAR = re.compile(
    r"\| {0,4}([0-9]{1,9})/([0-9]{1,9}) \[(?:([0-9]{1,4}):)?([0-9]{1,2}):([0-9]{2})<"
    r"[^\]\r\n]{1,30}, {1,4}([0-9.]{1,12})(s/it|it/s)"
)
_TITAN = re.compile(
    r"step: {1,8}(?P<step>[0-9]{1,9}) {1,8}loss: {1,8}(?P<loss>\S{1,20})"
    r"(?: {1,8}grad_norm: {1,8}(?P<norm>\S{1,20}))?[^\r\n]{0,80}?memory: {1,8}(?P<memory>[0-9.]{1,9})GiB"
    r"\([0-9.]{1,9}%\) {1,8}tps: {1,8}[0-9,]{1,15}(?: {1,8}tflops: {1,8}[0-9,.]{1,15} {1,8}mfu: {1,8}[0-9.]{1,9}%)?"
)
_BRIDGE = re.compile(r"Step Time : ([0-9.]{1,12})s GPU utilization: ([0-9.]{1,12})MODEL_TFLOP/s/GPU")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}[,.][0-9]{3}")
_BEFORE = 120
"""Characters before a step in which its clock stands."""
_CLOCK = "%Y-%m-%d %H:%M:%S.%f"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedSpeed:
    """Hold what the steps of a log say; what they do not is None."""

    step_s: float | None
    peak_bytes: int | None = None


def has_steps(log: str) -> bool:
    """Tell whether any step was trained."""
    return has_iterations(log) or any(pattern.search(log) for pattern in (_DICT, _TITAN, _BRIDGE))


def is_of_trainer(log: str) -> bool:
    """Tell whether Hugging Face's Trainer printed the steps."""
    return _DICT.search(log) is not None and not has_iterations(log)


def after_steps(log: str) -> str:
    """Return what the log says after its last step, or all of it where it has none."""
    rest = after_iterations(log)
    start = len(log) - len(rest)
    for pattern in (_DICT, _TITAN, _BRIDGE):
        start = max([start, *(match.end() for match in pattern.finditer(log, start))])
    return log[start:]


def logged_values(log: str) -> list[tuple[int, dict[str, str]]]:
    """Return what the Trainer and torchtitan print at each step, by name, with its place in the log."""
    found = [(match.start(), dict(_PAIR.findall(match[0]))) for match in _DICT.finditer(log)]
    found += [
        (match.start(), {"loss": match["loss"], "grad_norm": match["norm"] or ""}) for match in _TITAN.finditer(log)
    ]
    return found


def logged_speed(log: str) -> LoggedSpeed | None:
    """Return the speed that the steps of the Trainer, torchtitan or Megatron-Bridge show, or None.

    >>> logged_speed("Step Time : 1.50s GPU utilization: 456.7MODEL_TFLOP/s/GPU").step_s
    1.5
    """
    return _titan(log) or _bridge(log) or _trainer(log)


def megatron_speed(log: str) -> LoggedSpeed | None:
    """Return the same of Megatron-LM's lines, for a log of which nothing else is known."""
    lines = read_megatron_lines(log)
    if not lines:
        return None
    return LoggedSpeed(step_s=_steady([line.seconds for line in lines]), peak_bytes=peak_memory_bytes(log, lines))


def _steady(seconds: Sequence[float]) -> float | None:
    kept = seconds[num_warm_up(seconds) :] or seconds
    return long_run(kept) if kept else None


def _titan(log: str) -> LoggedSpeed | None:
    steps = list(_TITAN.finditer(log))
    if not steps:
        return None
    timed = [(int(each["step"]), clock_s) for each in steps if (clock_s := _clock(log, each.start())) is not None]
    pairs = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(timed) if b[0] > a[0] and b[1] > a[1]]
    peak_bytes = max(gib_to_bytes(each["memory"]) or 0 for each in steps) or None
    return LoggedSpeed(step_s=_steady(pairs), peak_bytes=peak_bytes)


def _clock(log: str, position: int) -> float | None:
    """Return when a step was printed, in seconds, where its line says it."""
    line = log[max(position - _BEFORE, 0) : position].rpartition("\n")[2]
    found = _TIME.search(line)
    try:
        return datetime.strptime(found[0].replace(",", "."), _CLOCK).timestamp() if found else None
    except ValueError:  # a 31st of February
        return None


def _bridge(log: str) -> LoggedSpeed | None:
    printed = [read_number(match[1]) for match in _BRIDGE.finditer(log)]
    seconds = [each for each in printed if each]
    return LoggedSpeed(step_s=_steady(seconds)) if seconds else None


def _trainer(log: str) -> LoggedSpeed | None:
    logged = [dict(_PAIR.findall(match[0])) for match in _DICT.finditer(log)]
    if not logged:
        return None
    bars = [match.groups() for match in _BAR.finditer(log)]
    # Evaluation has bars of its own, with another total; training has the most steps.
    most = max((int(bar[1]) for bar in bars), default=0)
    timed = [(int(bar[0]), _elapsed_s(bar)) for bar in bars if int(bar[1]) == most]
    rates = [read_number(each.get("train_steps_per_second", "")) for each in logged]
    known = [rate for rate in rates if rate is not None and 0 < rate < math.inf]
    return LoggedSpeed(step_s=_by_bars(timed) or (1 / known[-1] if known else None))


def _elapsed_s(bar: Sequence[str | None]) -> float:
    hours, minutes, seconds = (int(each or 0) for each in bar[2:5])
    return float(hours * 3600 + minutes * 60 + seconds)


def _by_bars(timed: Sequence[tuple[int, float]]) -> float | None:
    """Return the seconds of a step over the second half of the bars: their clock counts whole seconds."""
    steps = [each for each in timed if each[0] > 0]
    if len(steps) < 2:
        return None
    (first, start_s), (last, end_s) = steps[len(steps) // 2 - 1], steps[-1]
    return (end_s - start_s) / (last - first) if last > first and end_s > start_s else None
