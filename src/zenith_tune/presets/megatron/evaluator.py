"""The evaluator of Megatron-LM and ms-swift logs: tokens per second, or another rate, of the steady state.

The sequence length of a training run, as its command or its log tells it.

Megatron-LM dumps its arguments as a table of `  seq_length ...... 4096`; ms-swift calls the length max_length, and
dumps its arguments as `max_length=4096` within one long line.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from zenith_tune.errors import CommandError
from zenith_tune.evaluators.base import BATCH, EvaluatorRegistry, Measurement, Progress
from zenith_tune.evaluators.iterations import (
    TFLOPS,
    IterationLine,
    peak_allocated_bytes,
    peak_memory_bytes,
    read_megatron_lines,
)
from zenith_tune.evaluators.steady import SpeedEvaluator, long_run, num_warm_up, summarise
from zenith_tune.presets.megatron.swift_log import logging_file, read_swift_lines
from zenith_tune.shell import ParsedCommand
from zenith_tune.study.parameters import Direction, Value
from zenith_tune.units import whole

SEQUENCE_OPTIONS = ("--seq-length", "--max-length")
"""How Megatron-LM and ms-swift spell the sequence length."""

_DUMPED = (
    re.compile(r"(?<![\w.])seq_length \.{1,120} ([0-9]{1,9})(?!\w)"),
    re.compile(r"(?<![\w.])max_length(?: \.{1,120} |=)([0-9]{1,9})(?!\w)"),
)


def sequence_in_command(command: str) -> int | None:
    """Return the length that a command itself says, or None.

    >>> sequence_in_command("megatron sft --max_length 4096"), sequence_in_command("bash train.sh")
    (4096, None)
    """
    try:
        line = ParsedCommand.of(command)
        said = next((value for name in SEQUENCE_OPTIONS if (value := line.get(name)) is not None), None)
    except CommandError:
        return None
    return whole(said or "") or None


def sequence_in_log(log: str) -> int | None:
    """Return the length in the arguments that a log dumps, or None.

    >>> sequence_in_log("  encoder_seq_length .... 8\\n  seq_length .... 4096\\n")
    4096
    """
    found = (pattern.search(log) for pattern in _DUMPED)
    return next((length for match in found if match and (length := whole(match[1]))), None)


_BARE = re.compile(rf"^[ \t]*{re.escape(TFLOPS)}:[ \t]*([-+\w.]{{1,30}})[ \t]*$", re.MULTILINE)
"""A line that holds a throughput and nothing else, as small trainers of one's own print it."""

OBJECTIVES = {
    "tokens_per_s": Direction.MAXIMIZE,
    "throughput": Direction.MAXIMIZE,
    "step_time": Direction.MINIMIZE,
    "tflops": Direction.MAXIMIZE,
    "samples_per_s": Direction.MAXIMIZE,
}
MIN_CLEAN_ITERATIONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """Hold an objective's value at each steady line."""

    values: list[float]
    unit: str
    fallback: str | None = None
    """Why it is not the unit that was asked for."""


@EvaluatorRegistry.register("megatron")
class MegatronEvaluator(SpeedEvaluator):
    """Read the steady speed from the iteration lines of Megatron-LM or ms-swift.

    `tokens_per_s` is the global batch times the sequence by the step's time, over all GPUs, and is the default where
    `gbs` and `seq` are given; without them they are taken from the log or the command, and where those do not tell
    either, it falls back to samples or iterations per second. `throughput`, otherwise the default, is TFLOP/s per GPU
    where the log prints it, else samples per second where the global batch size is known (from the log or from `gbs`),
    else iterations per second. A log without iteration lines may print the throughput alone, on lines of its own.

    >>> line = " iteration {0}/ 3 | elapsed time per iteration (ms): 500.0 | global batch size: 16 |\\n"
    >>> log = line.format(1) + line.format(2) + line.format(3)
    >>> MegatronEvaluator().evaluate(log, {}), MegatronEvaluator(gbs=16, seq=4096).evaluate(log, {})
    (32.0, 131072.0)
    """

    objectives: ClassVar[Mapping[str, Direction]] = OBJECTIVES

    def __init__(self, objective: str | None = None, gbs: int | None = None, seq: int | None = None) -> None:
        super().__init__(objective or ("tokens_per_s" if gbs and seq else "throughput"), gbs=gbs, seq=seq)
        self.gbs, self.seq = gbs, seq

    def with_objective(self, name: str) -> MegatronEvaluator:
        """Return the evaluator of the same job that reads another objective."""
        return MegatronEvaluator(name, gbs=self.gbs, seq=self.seq)

    def measure(self, stdout: str, metadata: Mapping[str, Any]) -> Measurement:
        """Return the value with its spread, step time and peak memory."""
        found = _all_lines(stdout, metadata)
        if not found and (rates := self._bare_rates(stdout)):
            peak = peak_memory_bytes(stdout, [])
            return summarise(rates, Direction.MAXIMIZE, unit="TFLOP/s/GPU", peak_memory_bytes=peak)
        lines = _valid_lines(found, stdout)
        steady = _steady(lines)
        reading = self._read(steady, stdout, metadata)
        return summarise(
            reading.values,
            self.direction,
            unit=reading.unit,
            step_s=long_run([line.seconds for line in steady]),
            peak_memory_bytes=peak_memory_bytes(stdout, lines),
            extra=_extra(steady, stdout, reading),
        )

    def _bare_rates(self, stdout: str) -> list[float]:
        """Return the steady rates of a log that prints them, and nothing else of its iterations."""
        if self.direction is Direction.MINIMIZE or self.objective == "samples_per_s":
            return []
        rates = [float(match[1]) for match in _BARE.finditer(stdout)]
        if any(not (math.isfinite(rate) and rate > 0) for rate in rates):
            raise ValueError("a throughput must be above 0, but the log prints another")
        return rates[num_warm_up([1 / rate for rate in rates]) :]

    def progress(self, stdout: str, metadata: Mapping[str, Any]) -> Progress | None:
        """Return the values of the steady lines so far; None while there are none, or where they are worth nothing."""
        whole_lines = stdout[: stdout.rfind("\n") + 1]  # half a number reads as a whole one
        try:
            lines = _valid_lines(_all_lines(whole_lines, metadata), whole_lines)
            reading = self._read(_steady(lines), whole_lines, metadata)
        except ValueError:
            return None
        first, last = lines[0].iteration, lines[-1].iteration
        # A run that continues from a checkpoint does not begin at 1.
        interval = lines[1].iteration - first if len(lines) > 1 else 1
        return Progress(
            values=reading.values,
            value=long_run(reading.values, self.direction),
            num_iterations=last - first + interval,
            unit=reading.unit,
            peak_memory_bytes=peak_memory_bytes(whole_lines, lines),
        )

    def describe(self) -> str:
        """Say what is measured."""
        known = {"gbs": self.gbs, "seq": self.seq if self.objective == "tokens_per_s" else None}
        at = " and ".join(f"{name} {value}" for name, value in known.items() if value)
        caveat = ""
        if self.objective == "tokens_per_s" and self.seq is None:
            caveat = " (samples/s unless the command or the log tells the sequence: give seq=4096)"
        return f"megatron {self.objective}{' at ' if at else ''}{at}{caveat}, {self.direction}"

    def _read(self, steady: Sequence[IterationLine], stdout: str, metadata: Mapping[str, Any]) -> _Reading:
        """Return the objective's value of each steady line."""
        if self.objective == "step_time":
            return _Reading(values=[line.seconds for line in steady], unit="s")
        tflops, samples = _tflops(steady), self._samples_per_s(steady)
        if self.objective == "tflops" or (self.objective == "throughput" and tflops):
            return _Reading(values=_required_tflops(tflops), unit="TFLOP/s/GPU")
        fallback = None
        if self.objective == "tokens_per_s":
            seq = self.seq or sequence_in_command(str(metadata.get("command", ""))) or sequence_in_log(stdout)
            if samples and seq:
                return _Reading(values=[rate * seq for rate in samples], unit="tokens/s")
            what, hint = ("sequence length", "seq=4096") if samples else ("global batch size", "gbs=16")
            fallback = f"tokens/s needs the {what}, which neither the command nor the log tells: give --args {hint}"
        if samples:
            return _Reading(values=samples, unit="samples/s", fallback=fallback)
        if self.objective == "samples_per_s":
            raise ValueError("the log prints no global batch size: pass gbs to the evaluator")
        return _Reading(values=[1 / line.seconds for line in steady], unit="iterations/s", fallback=fallback)

    def _samples_per_s(self, steady: Sequence[IterationLine]) -> list[float]:
        sizes = ((line.global_batch_size or self.gbs, line.seconds) for line in steady)
        return [size / seconds for size, seconds in sizes if size]


def _extra(steady: Sequence[IterationLine], log: str, reading: _Reading) -> dict[str, Value]:
    """Return what the log says beside the objective."""
    extra: dict[str, Value] = {}
    if tflops := _tflops(steady):
        extra["tflops_per_gpu"] = statistics.median(tflops)
    if allocated := peak_allocated_bytes(log):
        extra["peak_allocated_bytes"] = allocated
    if steady and (batch := steady[-1].global_batch_size):
        extra[BATCH] = batch
    if reading.fallback is not None:
        extra["fallback"] = reading.fallback
    return extra


def _steady(lines: Sequence[IterationLine]) -> Sequence[IterationLine]:
    return lines[num_warm_up([line.seconds for line in lines]) :]


def _tflops(lines: Sequence[IterationLine]) -> list[float]:
    return [line.tflops_per_gpu for line in lines if line.tflops_per_gpu is not None]


def _required_tflops(tflops: list[float]) -> list[float]:
    if not tflops:
        raise ValueError("the log prints no TFLOP/s: add --log-throughput (ms-swift 3.x: --log_throughput true)")
    if statistics.median(tflops) <= 0:
        raise ValueError("the log prints a throughput of 0.0 TFLOP/s/GPU, too small to compare: use step_time")
    return tflops


def _valid_lines(lines: list[IterationLine], stdout: str) -> list[IterationLine]:
    """Return the iteration lines that count, or raise ValueError with the cause where the run is worth nothing."""
    if not lines:
        if not stdout or stdout.isspace():
            raise ValueError("the log is empty")
        hint = "lower --log-interval (ms-swift 4.x: --logging_steps) or train for longer"
        raise ValueError(f"no iteration line in the log; {hint}")
    _refuse_nan(lines)
    return _without_leading_skips(lines)


def _all_lines(stdout: str, metadata: Mapping[str, Any]) -> list[IterationLine]:
    return read_megatron_lines(stdout) or read_swift_lines(stdout) or read_swift_lines(logging_file(stdout, metadata))


def _refuse_nan(lines: Sequence[IterationLine]) -> None:
    loss_is_printed = any(line.has_lm_loss for line in lines)
    for line in lines:
        at = f"at iteration {line.iteration}"
        if line.num_nan:
            raise ValueError(f"NaN {at}: {line.num_nan} NaN iterations since the line before")
        # While fp16 searches its loss scale, an infinite gradient is what a skipped iteration is skipped for.
        if line.flaw and not (line.num_skipped and line.flaw.startswith("grad")):
            raise ValueError(f"NaN {at}: {line.flaw}")
        # Megatron leaves the loss out of the line when it is NaN.
        if loss_is_printed and not line.has_lm_loss and not line.num_skipped:
            raise ValueError(f"NaN {at}: the line has no lm loss, which Megatron leaves out when it is NaN")
        if not (math.isfinite(line.seconds) and line.seconds > 0):
            raise ValueError(f"the time of an iteration must be above 0, but {at} it is {line.seconds * 1000} ms")
        if line.tflops_per_gpu is not None and not math.isfinite(line.tflops_per_gpu):
            raise ValueError(f"the throughput must be finite, but {at} it is {line.tflops_per_gpu} TFLOP/s/GPU")


def _without_leading_skips(lines: list[IterationLine]) -> list[IterationLine]:
    """Drop the lines of fp16's search for a loss scale, or raise ValueError where skipping continues."""
    skipping = [index for index, line in enumerate(lines) if line.num_skipped]
    if not skipping:
        return lines
    leading = next((index for index, line in enumerate(lines) if not line.num_skipped), len(lines))
    num_skipped = sum(line.num_skipped for line in lines)
    if skipping[-1] >= leading:
        late = next(line for line in lines[leading:] if line.num_skipped)
        raise ValueError(f"iterations skipped at iteration {late.iteration}, after clean ones ({num_skipped} in all)")
    num_clean = lines[-1].iteration - lines[leading - 1].iteration
    if num_clean < MIN_CLEAN_ITERATIONS:
        counts = f"{num_skipped} iterations skipped and {num_clean} clean ones after"
        raise ValueError(f"{counts}, but at least {MIN_CLEAN_ITERATIONS} must follow: train for longer")
    return lines[leading:]
