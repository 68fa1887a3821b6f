"""The evaluator of DeepSpeed's and the Hugging Face Trainer's logs: the speed of the steady state.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import BATCH, EvaluatorRegistry, Measurement, Progress
from zenith_tune.evaluators.iterations import read_number
from zenith_tune.evaluators.steady import SpeedEvaluator, long_run, num_warm_up, summarise
from zenith_tune.study.parameters import Direction
from zenith_tune.units import GIB, count

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
_LOSS = re.compile(r"['\"]loss['\"]: ?['\"]?([-+]?(?:nan|inf)\b)", re.IGNORECASE)
_BAR = re.compile(
    r"\b([0-9]{1,9})/([0-9]{1,9}) \[(?:([0-9]{1,4}):)?([0-9]{1,2}):([0-9]{2})<[^,\]\r\n]{1,20}, {1,4}"
    r"([0-9]{1,9}(?:\.[0-9]{1,4})?)(it/s|s/it)"
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
    """Return why a run is worth nothing although it continues, in one line: no finite loss, or no step that counts."""
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


UNITS = {"throughput": "samples/s", "latency": "s", "flops": "TFLOP/s/GPU", "tokens_per_s": "tokens/s"}
OBJECTIVES = {name: Direction.MINIMIZE if name == "latency" else Direction.MAXIMIZE for name in UNITS}
SAME = {"samples_per_s": "throughput", "step_time": "latency", "tflops": "flops"}
"""What other evaluators call them."""
TERA = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """Hold the speed of each step that a log tells of, warm-up included; empty is what the log does not tell."""

    samples_per_s: Sequence[float]
    seconds: Sequence[float]
    source: str


@EvaluatorRegistry.register("deepspeed")
class DeepSpeedEvaluator(SpeedEvaluator):
    """Read the steady speed from DeepSpeed's lines, else from its step timers, else from the Trainer's.

    `throughput` is samples per second, `latency` seconds per step, `flops` TFLOP/s per GPU. `gbs` is the global batch;
    `n_gpus` and `flops_per_sample` are needed for `flops` alone, `seq` for `tokens_per_s`. `samples_per_s`, `step_time`
    and `tflops` mean the first three. `contents` tells one study's configuration from another's.

    >>> line = "epoch=0/micro_step={0}/global_step={0}, RunningAvgSamplesPerSec=30.0, CurrSamplesPerSec=32.0, "
    >>> DeepSpeedEvaluator().evaluate("".join(line.format(step) + "\\n" for step in (3, 4, 5)), {})
    32.0
    """

    objectives: ClassVar[Mapping[str, Direction]] = {
        **OBJECTIVES,
        **{name: OBJECTIVES[same] for name, same in SAME.items()},
    }

    def __init__(
        self,
        objective: str = "throughput",
        gbs: int | None = None,
        n_gpus: int | None = None,
        flops_per_sample: float | None = None,
        seq: int | None = None,
        contents: str = "",
    ) -> None:
        objective = SAME.get(objective, objective)
        super().__init__(objective, gbs=gbs, n_gpus=n_gpus, flops_per_sample=flops_per_sample, seq=seq)
        if objective == "flops" and (flops_per_sample is None or n_gpus is None):
            hint = "take --preset deepspeed with --args metric=flops, or the objective throughput"
            raise UsageError("the objective flops needs flops_per_sample and n_gpus, but has not both", hint=hint)
        if objective == "tokens_per_s" and seq is None:
            raise UsageError("the objective tokens_per_s needs the tokens of a sample", hint="give --args seq=2048")
        self.gbs, self.n_gpus, self.flops_per_sample = gbs, n_gpus, flops_per_sample
        self.seq, self.contents = seq, contents

    def with_objective(self, name: str) -> DeepSpeedEvaluator:
        """Return the evaluator of the same job that reads another objective."""
        return DeepSpeedEvaluator(name, self.gbs, self.n_gpus, self.flops_per_sample, self.seq, self.contents)

    def measure(self, stdout: str, metadata: Mapping[str, Any]) -> Measurement:
        """Return the value with its spread, step time and peak memory."""
        steps = self._steps(stdout)
        self._check(stdout)
        values, seconds = self._steady(steps)
        total = total_samples_per_s(stdout)
        extra: dict[str, float | str] = {"speed_read_from": steps.source}
        if total is not None:
            extra["train_samples_per_second"] = total
        if (batch := trained_batch(stdout)) is not None:
            extra[BATCH] = batch
        return summarise(
            values,
            self.direction,
            unit=self._unit,
            step_s=long_run(seconds) if seconds else None,
            peak_memory_bytes=peak_memory_bytes(stdout),
            extra=extra,
        )

    def progress(self, stdout: str, metadata: Mapping[str, Any]) -> Progress | None:
        """Return the values of the steady steps so far; None while there are none, or where they are worth nothing."""
        whole_lines = stdout[: stdout.rfind("\n") + 1]  # half a number reads as a whole one
        try:
            steps = self._steps(whole_lines)
            if steps.source == _TRAINER:
                return None
            values, _ = self._steady(steps)
        except ValueError:
            return None
        if flaw(whole_lines) is not None:
            return None
        num_steps = max(len(steps.samples_per_s), len(steps.seconds))
        return Progress(
            values=values,
            value=long_run(values, self.direction),
            num_iterations=num_steps,
            unit=self._unit,
            peak_memory_bytes=peak_memory_bytes(whole_lines),
        )

    def describe(self) -> str:
        """Say what is measured."""
        batch = f" at gbs {self.gbs}" if self.gbs else ""
        contents = f" with {self.contents}" if self.contents else ""
        return f"deepspeed {self.objective}{batch}{contents}, {self.direction}"

    @property
    def _unit(self) -> str:
        return UNITS[self.objective]

    def _check(self, log: str) -> None:
        if (cause := flaw(log)) is not None:
            raise ValueError(cause)
        ranks = num_ranks(log)
        if ranks is not None and self.n_gpus is not None and ranks not in (self.n_gpus, self._model_copies(ranks)):
            raise ValueError(f"DeepSpeed trained on {count(ranks, 'rank')}, but the job is for {self.n_gpus}")

    def _model_copies(self, ranks: int) -> int | None:
        """Return the ranks where several share one model, which DeepSpeed does not count."""
        assert self.n_gpus is not None
        return ranks if ranks > 1 and self.n_gpus % ranks == 0 else None

    def _steps(self, log: str) -> _Steps:
        lines = speed_lines(log)
        gbs = trained_batch(log) or self.gbs  # the user's own command may train another batch than the trials
        if lines:
            speeds = [line.samples_per_s for line in lines]
            seconds = [gbs / speed for speed in speeds] if gbs else []
            return _Steps(samples_per_s=speeds, seconds=seconds, source="DeepSpeed's throughput lines")
        for seconds, source in ((timed_steps(log), "DeepSpeed's step timers"), (bar_steps(log), "the progress bar")):
            if seconds:
                speeds = [gbs / step_s for step_s in seconds] if gbs else []
                return _Steps(samples_per_s=speeds, seconds=seconds, source=source)
        total = total_samples_per_s(log)
        if total is not None:
            return _Steps(samples_per_s=[total], seconds=[gbs / total] if gbs else [], source=_TRAINER)
        if not log or log.isspace():
            raise ValueError("the log is empty")
        hint = 'set "wall_clock_breakdown": true in the JSON, or train for longer'
        raise ValueError(f"the log has no speed of DeepSpeed's or of the Trainer's; {hint}")

    def _steady(self, steps: _Steps) -> tuple[list[float], list[float]]:
        """Return the objective's value of each steady step, and the seconds of each where they are known."""
        paces = steps.seconds or [1 / speed for speed in steps.samples_per_s]
        warm_up = num_warm_up(paces)
        seconds, speeds = list(steps.seconds[warm_up:]), list(steps.samples_per_s[warm_up:])
        if self.objective == "latency":
            return self._known(seconds), seconds
        speeds = self._known(speeds)
        if self.objective == "throughput":
            return speeds, seconds
        if self.seq is not None and self.objective == "tokens_per_s":
            return [speed * self.seq for speed in speeds], seconds
        assert self.flops_per_sample is not None and self.n_gpus is not None
        return [speed * self.flops_per_sample / self.n_gpus / TERA for speed in speeds], seconds

    def _known(self, values: list[float]) -> list[float]:
        if not values:
            raise ValueError("the log does not tell how many samples a step has: pass gbs to the evaluator")
        return values


_TRAINER = "the Trainer's figure for the whole run"
