"""The evaluator of DeepSpeed's and the Hugging Face Trainer's logs: the speed of the steady state."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from zenith_tune.direction import Direction
from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.evaluators.base import BATCH, Measurement, Progress, TuningEvaluator
from zenith_tune.evaluators.deepspeed_lines import (
    bar_steps,
    flaw,
    num_ranks,
    peak_memory_bytes,
    speed_lines,
    timed_steps,
    total_samples_per_s,
    trained_batch,
)
from zenith_tune.evaluators.steady import num_warm_up, relative_spread
from zenith_tune.registry import EvaluatorRegistry
from zenith_tune.units import count

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
class DeepSpeedEvaluator(TuningEvaluator):
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
        if objective not in OBJECTIVES:
            raise UnknownNameError("objective", objective, self.objectives)
        for name, value in {"gbs": gbs, "n_gpus": n_gpus, "flops_per_sample": flops_per_sample, "seq": seq}.items():
            if value is not None and value <= 0:
                raise UsageError(f"{name} must be above 0, but got {value}: correct it")
        if objective == "flops" and (flops_per_sample is None or n_gpus is None):
            cure = "take --preset deepspeed with --args metric=flops, or the objective throughput"
            raise UsageError(f"the objective flops needs flops_per_sample and n_gpus, but has not both: {cure}")
        if objective == "tokens_per_s" and seq is None:
            raise UsageError("the objective tokens_per_s needs the tokens of a sample: give --args seq=2048")
        self.objective, self.gbs, self.n_gpus, self.flops_per_sample = objective, gbs, n_gpus, flops_per_sample
        self.seq, self.contents = seq, contents
        self.direction = OBJECTIVES[objective]

    def with_objective(self, name: str) -> DeepSpeedEvaluator:
        """Return the evaluator of the same job that reads another objective."""
        return DeepSpeedEvaluator(name, self.gbs, self.n_gpus, self.flops_per_sample, self.seq, self.contents)

    def evaluate(self, stdout: str, metadata: Mapping[str, Any]) -> float:
        """Return the objective's value, or raise ValueError with a one-line cause."""
        return self.measure(stdout, metadata).value

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
        return Measurement(
            value=statistics.median(values),
            unit=self._unit,
            spread=relative_spread(values),
            num_samples=len(values),
            step_s=statistics.median(seconds) if seconds else None,
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
        cure = 'set "wall_clock_breakdown": true in the JSON, or train for longer'
        raise ValueError(f"the log has no speed of DeepSpeed's or of the Trainer's; {cure}")

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
