"""The evaluator of DeepSpeed's and the Hugging Face Trainer's logs: the speed of the steady state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import BATCH, EvaluatorRegistry
from zenith_tune.evaluators.engine_log import flaw, num_ranks, read_steps
from zenith_tune.evaluators.speed import SpeedEvaluator, Units, directions
from zenith_tune.evaluators.steps import SAMPLES, SECONDS, TFLOPS, TOKENS, JobSizes, LoggedSteps
from zenith_tune.units import count

UNITS: Units = {"throughput": (SAMPLES,), "latency": (SECONDS,), "flops": (TFLOPS,), "tokens_per_s": (TOKENS,)}
SAME = {"samples_per_s": "throughput", "step_time": "latency", "tflops": "flops"}
"""Names of the objectives in other evaluators."""


@EvaluatorRegistry.register("deepspeed")
class DeepSpeedEvaluator(SpeedEvaluator):
    """The steady speed by DeepSpeed's lines, else by its step timers, else by the Trainer's lines.

    `throughput` is samples per second, `latency` seconds per step, `flops` TFLOP/s per GPU. `gbs` is the global batch;
    `n_gpus` and `flops_per_sample` are needed for `flops` alone, `seq` for `tokens_per_s`. `samples_per_s`, `step_time`
    and `tflops` mean the first three. `contents` distinguishes the configurations of two studies.
    """

    units = UNITS
    objectives: ClassVar = directions({**UNITS, **{name: UNITS[same] for name, same in SAME.items()}})

    def __init__(
        self,
        objective: str = "throughput",
        gbs: int | None = None,
        n_gpus: int | None = None,
        flops_per_sample: float | None = None,
        seq: int | None = None,
        contents: str = "",
    ) -> None:
        self.gbs, self.n_gpus, self.flops_per_sample = gbs, n_gpus, flops_per_sample
        self.seq, self.contents = seq, contents
        super().__init__(objective, gbs=gbs, n_gpus=n_gpus, flops_per_sample=flops_per_sample, seq=seq)

    def _take_objective(self, name: str) -> None:
        super()._take_objective(SAME.get(name, name))
        if self.objective == "flops" and (self.flops_per_sample is None or self.n_gpus is None):
            hint = "take --preset deepspeed with --args metric=flops, or the objective throughput"
            raise UsageError("the objective flops needs flops_per_sample and n_gpus, but has not both", hint=hint)
        if self.objective == "tokens_per_s" and self.seq is None:
            raise UsageError("the objective tokens_per_s needs the tokens of a sample", hint="give --seq 2048")

    def read(self, log: str, metadata: Mapping[str, Any]) -> LoggedSteps:
        """Return the steps of a job that trains on as many ranks as it is for."""
        logged = read_steps(log)
        if not logged.steps:
            if not log or log.isspace():
                raise ValueError("the log is empty")
            hint = 'set "wall_clock_breakdown": true in the JSON, or train for longer'
            raise ValueError(f"the log has no speed of DeepSpeed's or of the Trainer's; {hint}")
        if (cause := flaw(log)) is not None:
            raise ValueError(cause)
        self._check_ranks(num_ranks(log))
        trained = logged.extra.get(BATCH)  # the user's own command may train another batch than the trials
        gbs = trained if isinstance(trained, int) else self.gbs
        flops = self.flops_per_sample if self.objective == "flops" else None
        return replace(logged, sizes=JobSizes(gbs=gbs, seq=self.seq, n_gpus=self.n_gpus, flops_per_sample=flops))

    def describe(self) -> str:
        batch = f" at gbs {self.gbs}" if self.gbs else ""
        contents = f" with {self.contents}" if self.contents else ""
        return f"deepspeed {self.objective}{batch}{contents}, {self.direction}"

    def _check_ranks(self, ranks: int | None) -> None:
        """Refuse a job that came apart; where several ranks share one model, DeepSpeed counts them once."""
        if ranks is None or self.n_gpus is None or ranks == self.n_gpus or (ranks > 1 and self.n_gpus % ranks == 0):
            return
        raise ValueError(f"DeepSpeed trained on {count(ranks, 'rank')}, but the job is for {self.n_gpus}")

    def _missing(self) -> str:
        return "the log does not tell how many samples a step has: pass gbs to the evaluator"
