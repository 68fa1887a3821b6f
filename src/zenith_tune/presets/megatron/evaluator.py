"""The evaluator of Megatron-LM and ms-swift logs: tokens per second, or another rate, of the steady state.

Megatron-LM dumps its arguments as a table of `  seq_length ...... 4096`; ms-swift calls the length max_length, and
dumps its arguments as `max_length=4096` within one long line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from zenith_tune.errors import CommandError
from zenith_tune.evaluators.base import EvaluatorRegistry
from zenith_tune.evaluators.speed import SpeedEvaluator, Units
from zenith_tune.evaluators.steps import SAMPLES, SECONDS, TFLOPS, TOKENS, JobSizes, LoggedSteps, Step
from zenith_tune.presets.megatron.log import THROUGHPUT, read_steps
from zenith_tune.presets.megatron.swift_log import logging_file
from zenith_tune.shell import ParsedCommand
from zenith_tune.study.parameters import Value
from zenith_tune.units import whole

SEQUENCE_OPTIONS = ("--seq-length", "--max-length")
"""The options of the sequence length in Megatron-LM and ms-swift."""

_DUMPED = (
    re.compile(r"(?<![\w.])seq_length \.{1,120} ([0-9]{1,9})(?!\w)"),
    re.compile(r"(?<![\w.])max_length(?: \.{1,120} |=)([0-9]{1,9})(?!\w)"),
)


def sequence_in_command(command: str) -> int | None:
    """Return the length that a command itself says, or None."""
    try:
        line = ParsedCommand.of(command)
        said = next((value for name in SEQUENCE_OPTIONS if (value := line.get(name)) is not None), None)
    except CommandError:
        return None
    return whole(said or "") or None


def sequence_in_log(log: str) -> int | None:
    """Return the length in the arguments that a log dumps, or None."""
    found = (pattern.search(log) for pattern in _DUMPED)
    return next((length for match in found if match and (length := whole(match[1]))), None)


_BARE = re.compile(rf"^[ \t]*{re.escape(THROUGHPUT)}:[ \t]*([-+\w.]{{1,30}})[ \t]*$", re.MULTILINE)
"""A line that holds a throughput and nothing else, as small trainers print it."""

UNITS: Units = {
    "tokens_per_s": (TOKENS, SAMPLES, "iterations/s"),
    "throughput": (TFLOPS, SAMPLES, "iterations/s"),
    "step_time": (SECONDS,),
    "tflops": (TFLOPS,),
    "samples_per_s": (SAMPLES,),
}
MIN_CLEAN_ITERATIONS = 3


@EvaluatorRegistry.register("megatron")
class MegatronEvaluator(SpeedEvaluator):
    """The steady speed by the iteration lines of Megatron-LM or ms-swift.

    `tokens_per_s` is the global batch times the sequence by the step's time, over all GPUs, and is the default where
    `gbs` and `seq` are given; without them they are taken from the log or the command, and where those do not show
    them either, it falls back to samples or iterations per second. `throughput`, otherwise the default, is TFLOP/s per
    GPU where the log prints it, else samples per second where the global batch size is known (from the log or from
    `gbs`), else iterations per second. A log without iteration lines may print the throughput alone, on lines of its
    own.

    >>> line = " iteration {0}/ 3 | elapsed time per iteration (ms): 500.0 | global batch size: 16 |\\n"
    >>> log = line.format(1) + line.format(2) + line.format(3)
    >>> MegatronEvaluator().evaluate(log, {}), MegatronEvaluator(gbs=16, seq=4096).evaluate(log, {})
    (32.0, 131072.0)
    """

    units = UNITS
    reads_short_steps = True

    def __init__(self, objective: str | None = None, gbs: int | None = None, seq: int | None = None) -> None:
        super().__init__(objective or ("tokens_per_s" if gbs and seq else "throughput"), gbs=gbs, seq=seq)
        self.gbs, self.seq = gbs, seq

    def read(self, log: str, metadata: Mapping[str, Any]) -> LoggedSteps:
        """Return the steps that count, or the throughput of a log that prints nothing else."""
        logged = read_steps(log)
        if not logged.steps:
            logged = read_steps(f"{log}\n{logging_file(log, metadata)}")
        if not logged.steps and (rates := self._bare_rates(log)):
            return replace(logged, steps=rates, shows_progress=False)
        seq = self.seq or sequence_in_command(str(metadata.get("command", ""))) or sequence_in_log(log)
        return replace(logged, steps=_valid_steps(logged.steps, log), sizes=JobSizes(gbs=self.gbs, seq=seq))

    def describe(self) -> str:
        known = {"gbs": self.gbs, "seq": self.seq if self.objective == "tokens_per_s" else None}
        at = " and ".join(f"{name} {value}" for name, value in known.items() if value)
        caveat = ""
        if self.objective == "tokens_per_s" and self.seq is None:
            caveat = " (samples/s unless the command or the log tells the sequence: give seq=4096)"
        return f"megatron {self.objective}{' at ' if at else ''}{at}{caveat}, {self.direction}"

    def _bare_rates(self, log: str) -> list[Step]:
        if self.objective in ("step_time", "samples_per_s"):
            return []
        rates = [float(match[1]) for match in _BARE.finditer(log)]
        if any(not (math.isfinite(rate) and rate > 0) for rate in rates):
            raise ValueError("a throughput must be above 0, but the log prints another")
        return [Step(number=number, tflops=rate) for number, rate in enumerate(rates, start=1)]

    def _unit(self, rates: Mapping[str, list[float]]) -> str:
        if rates[TFLOPS] and not rates[SECONDS]:  # whatever the objective
            return TFLOPS
        return super()._unit(rates)

    def _missing(self) -> str:
        if self.objective == "tflops":
            return "the log prints no TFLOP/s: add --log-throughput (ms-swift 3.x: --log_throughput true)"
        return "the log prints no global batch size: pass gbs to the evaluator"

    def _extra(self, logged: LoggedSteps, rates: Mapping[str, list[float]], unit: str) -> dict[str, Value]:
        extra = super()._extra(logged, rates, unit)
        if self.objective == "tokens_per_s" and unit not in (TOKENS, TFLOPS):
            what, hint = ("sequence length", "seq 4096") if rates[SAMPLES] else ("global batch size", "gbs 16")
            why = f"tokens/s needs the {what}, which neither the command nor the log tells: give --{hint}"
            extra["fallback"] = why
        return extra


def _valid_steps(steps: Sequence[Step], log: str) -> Sequence[Step]:
    """Return the steps that count, or raise ValueError with the cause where the run has no value."""
    if not steps:
        if not log or log.isspace():
            raise ValueError("the log is empty")
        if '"short_steps"' in log and "elapsed time per iteration" in log:
            raise ValueError("the run ended within its first short steps: train for longer, or give --whole-steps")
        hint = "lower --log-interval (ms-swift 4.x: --logging_steps) or train for longer"
        raise ValueError(f"no iteration line in the log; {hint}")
    _refuse_nan(steps)
    return _without_leading_skips(steps)


def _refuse_nan(steps: Sequence[Step]) -> None:
    loss_is_printed = any(step.has_loss for step in steps)
    for step in steps:
        at = f"at iteration {step.number}"
        if step.num_nan:
            raise ValueError(f"NaN {at}: {step.num_nan} NaN iterations since the line before")
        # While fp16 searches its loss scale, an infinite gradient is what a skipped iteration is skipped for.
        if step.flaw and not (step.num_skipped and step.flaw.startswith("grad")):
            raise ValueError(f"NaN {at}: {step.flaw}")
        # Megatron leaves the loss out of the line when it is NaN.
        if loss_is_printed and not step.has_loss and not step.num_skipped:
            raise ValueError(f"NaN {at}: the line has no lm loss, which Megatron leaves out when it is NaN")
        seconds = step.seconds or 0.0
        if not (math.isfinite(seconds) and seconds > 0):
            raise ValueError(f"the time of an iteration must be above 0, but {at} it is {seconds * 1000} ms")
        if step.tflops is not None and not math.isfinite(step.tflops):
            raise ValueError(f"the throughput must be finite, but {at} it is {step.tflops} TFLOP/s/GPU")


def _without_leading_skips(steps: Sequence[Step]) -> Sequence[Step]:
    """Drop the steps of fp16's search for a loss scale, or raise ValueError where skipping continues."""
    skipping = [index for index, step in enumerate(steps) if step.num_skipped]
    if not skipping:
        return steps
    leading = next((index for index, step in enumerate(steps) if not step.num_skipped), len(steps))
    num_skipped = sum(step.num_skipped for step in steps)
    if skipping[-1] >= leading:
        late = next(step for step in steps[leading:] if step.num_skipped)
        raise ValueError(f"iterations skipped at iteration {late.number}, after clean ones ({num_skipped} in all)")
    num_clean = steps[-1].number - steps[leading - 1].number
    if num_clean < MIN_CLEAN_ITERATIONS:
        counts = f"{num_skipped} iterations skipped and {num_clean} clean ones after"
        raise ValueError(f"{counts}, but at least {MIN_CLEAN_ITERATIONS} must follow: train for longer")
    return steps[leading:]
