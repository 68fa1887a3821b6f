"""The evaluator of Megatron-LM and ms-swift logs: throughput or step time of the steady state."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from zenith_tune.direction import Direction
from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.evaluators.base import Measurement, Progress, TuningEvaluator
from zenith_tune.evaluators.iterations import IterationLine, peak_memory_bytes, read_megatron_lines
from zenith_tune.evaluators.steady import Sample, num_warm_up, relative_spread, summarise
from zenith_tune.evaluators.swift import read_swift_lines
from zenith_tune.registry import EvaluatorRegistry

OBJECTIVES = {
    "throughput": Direction.MAXIMIZE,
    "step_time": Direction.MINIMIZE,
    "tflops": Direction.MAXIMIZE,
    "samples_per_s": Direction.MAXIMIZE,
}
MIN_CLEAN_ITERATIONS = 3


@EvaluatorRegistry.register("megatron")
class MegatronEvaluator(TuningEvaluator):
    """Read the steady speed from the iteration lines of Megatron-LM or ms-swift.

    `throughput` is TFLOP/s per GPU where the log prints it, else samples per second where the global batch size is
    known (from the log or from `gbs`), else iterations per second.

    >>> line = " iteration {0}/ 3 | elapsed time per iteration (ms): 500.0 | global batch size: 16 |\\n"
    >>> MegatronEvaluator().evaluate(line.format(1) + line.format(2) + line.format(3), {})
    32.0
    """

    def __init__(self, objective: str = "throughput", gbs: int | None = None) -> None:
        if objective not in OBJECTIVES:
            raise UnknownNameError("objective", objective, OBJECTIVES)
        if gbs is not None and gbs < 1:
            raise UsageError(f"gbs must be at least 1, but got {gbs}")
        self.objective = objective
        self.gbs = gbs
        self.direction = OBJECTIVES[objective]

    def evaluate(self, stdout: str, metadata: Mapping[str, Any]) -> float:
        """Return the objective's value, or raise ValueError with a one-line cause."""
        return self.measure(stdout, metadata).value

    def measure(self, stdout: str, metadata: Mapping[str, Any]) -> Measurement:
        """Return the value with its spread, step time and peak memory."""
        lines = _valid_lines(stdout)
        state = summarise([Sample(iteration=line.iteration, seconds=line.seconds) for line in lines])
        steady = lines[state.num_warm_up :]
        values, unit = self._values(steady)
        tflops = _tflops(steady)
        return Measurement(
            value=statistics.median(values),
            unit=unit,
            spread=relative_spread(values),
            num_samples=len(values),
            step_s=state.step_s,
            peak_memory_bytes=peak_memory_bytes(stdout, lines),
            extra={"tflops_per_gpu": statistics.median(tflops)} if tflops else {},
        )

    def progress(self, stdout: str, metadata: Mapping[str, Any]) -> Progress | None:
        """Return the values of the steady lines so far; None while there are none, or where they are worth nothing."""
        whole_lines = stdout[: stdout.rfind("\n") + 1]  # half a number reads as a whole one
        try:
            lines = _valid_lines(whole_lines)
            values, unit = self._values(lines[num_warm_up([line.seconds for line in lines]) :])
        except ValueError:
            return None
        first, last = lines[0].iteration, lines[-1].iteration
        # A run that goes on from a checkpoint does not begin at 1.
        interval = lines[1].iteration - first if len(lines) > 1 else 1
        return Progress(values=values, num_iterations=last - first + interval, unit=unit)

    def describe(self) -> str:
        """Say what is measured."""
        batch = f" at gbs {self.gbs}" if self.gbs else ""
        return f"megatron {self.objective}{batch}, {self.direction}"

    def _values(self, steady: Sequence[IterationLine]) -> tuple[list[float], str]:
        """Return the objective's value of each steady line, and the unit."""
        if self.objective == "step_time":
            return [line.seconds for line in steady], "s"
        tflops, samples = _tflops(steady), self._samples_per_s(steady)
        if self.objective == "tflops" or (self.objective == "throughput" and tflops):
            return _required_tflops(tflops), "TFLOP/s/GPU"
        if samples:
            return samples, "samples/s"
        if self.objective == "samples_per_s":
            raise ValueError("the log prints no global batch size: pass gbs to the evaluator")
        return [1 / line.seconds for line in steady], "iterations/s"

    def _samples_per_s(self, steady: Sequence[IterationLine]) -> list[float]:
        sizes = ((line.global_batch_size or self.gbs, line.seconds) for line in steady)
        return [size / seconds for size, seconds in sizes if size]


def _tflops(lines: Sequence[IterationLine]) -> list[float]:
    return [line.tflops_per_gpu for line in lines if line.tflops_per_gpu is not None]


def _required_tflops(tflops: list[float]) -> list[float]:
    if not tflops:
        raise ValueError("the log prints no TFLOP/s: add --log-throughput (ms-swift 3.x: --log_throughput true)")
    if statistics.median(tflops) <= 0:
        raise ValueError("the log prints a throughput of 0.0 TFLOP/s/GPU, too small to compare: use step_time")
    return tflops


def _valid_lines(stdout: str) -> list[IterationLine]:
    """Return the iteration lines that count, or raise ValueError with the cause where the run is worth nothing."""
    lines = read_megatron_lines(stdout) or read_swift_lines(stdout)
    if not lines:
        if not stdout or stdout.isspace():
            raise ValueError("the log is empty")
        cure = "lower --log-interval (ms-swift 4.x: --logging_steps) or train for longer"
        raise ValueError(f"no iteration line in the log; {cure}")
    _refuse_nan(lines)
    return _without_leading_skips(lines)


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
    """Drop the lines of fp16's search for a loss scale, or raise ValueError where skipping goes on."""
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
