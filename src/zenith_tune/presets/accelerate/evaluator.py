"""The evaluator of jobs that use Accelerate: the steady speed of a job that ran as what was asked for."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from zenith_tune.direction import Direction
from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.evaluators.accelerate_run import PLAIN, WRAPPER_WORDS, AccelerateRun, RunAsked
from zenith_tune.evaluators.base import Measurement, Progress, TuningEvaluator
from zenith_tune.evaluators.deepspeed_lines import flaw
from zenith_tune.evaluators.steady import num_warm_up, relative_spread
from zenith_tune.presets.deepspeed.evaluator import DeepSpeedEvaluator
from zenith_tune.registry import EvaluatorRegistry
from zenith_tune.study.parameters import Value

OBJECTIVES = {"throughput": Direction.MAXIMIZE, "latency": Direction.MINIMIZE}
Asked = Callable[[Mapping[str, Value]], RunAsked]
"""What a point asks for; no values stand for the user's own command."""


@EvaluatorRegistry.register("accelerate")
class AccelerateEvaluator(TuningEvaluator):
    """Read the steady speed from the lines of the trial's hook, else from those of DeepSpeed or of the Trainer.

    `throughput` is samples per second, or steps per second where `gbs`, the global batch, is not known; `latency` is
    seconds per step. A job that ran as something else than `n_gpus` processes with `wrapper` around the model has no
    value, unless `check` is false.

    >>> line = 'zenithtune-accelerate: {{"event": "step", "step": {0}, "passes": 1, "seconds": {0}.5}}\\n'
    >>> AccelerateEvaluator(gbs=8, check=False).evaluate("".join(line.format(step) for step in (1, 2, 3)), {})
    8.0
    """

    objectives = OBJECTIVES

    def __init__(
        self,
        objective: str = "throughput",
        gbs: int | None = None,
        n_gpus: int | None = None,
        wrapper: str = PLAIN,
        check: bool = True,
    ) -> None:
        if objective not in OBJECTIVES:
            raise UnknownNameError("objective", objective, OBJECTIVES)
        if wrapper not in WRAPPER_WORDS:
            raise UnknownNameError("wrapper", wrapper, WRAPPER_WORDS)
        for name, value in {"gbs": gbs, "n_gpus": n_gpus}.items():
            if value is not None and value < 1:
                raise UsageError(f"{name} must be above 0, but got {value}: correct it")
        if check and n_gpus is None:
            cure = "give n_gpus=8, or check=false"
            raise UsageError(f"evaluator accelerate compares the processes of a job with n_gpus, but has none: {cure}")
        self.objective, self.gbs, self.n_gpus, self.wrapper, self.check = objective, gbs, n_gpus, wrapper, check
        self.direction = OBJECTIVES[objective]
        self.asked: Asked = self._asked_by_arguments
        """What a trial's own settings must have been; a preset knows more of that than these arguments say."""

    def with_objective(self, name: str) -> AccelerateEvaluator:
        """Return the evaluator of the same job that reads another objective."""
        other = AccelerateEvaluator(name, self.gbs, self.n_gpus, self.wrapper, self.check)
        if self.asked != self._asked_by_arguments:
            other.asked = self.asked
        return other

    def evaluate(self, stdout: str, metadata: Mapping[str, Any]) -> float:
        """Return the objective's value, or raise ValueError with a one-line cause."""
        return self.measure(stdout, metadata).value

    def measure(self, stdout: str, metadata: Mapping[str, Any]) -> Measurement:
        """Return the value with its spread, step time and peak memory."""
        run = AccelerateRun.read(stdout)
        if (fault := self._fault(run, stdout, metadata)) is not None:
            raise ValueError(fault)
        extra: dict[str, Value] = {}
        if run.reports:
            extra = {"accelerate": str(run.reports[0].get("version")), "wrapper": str(run.reports[0].get("wrapper"))}
        if not run.seconds:
            measured = self._from_other_lines(stdout, metadata)
            return Measurement(
                value=measured.value,
                unit=measured.unit,
                spread=measured.spread,
                num_samples=measured.num_samples,
                step_s=measured.step_s,
                peak_memory_bytes=measured.peak_memory_bytes,
                extra={**measured.extra, **extra},
            )
        seconds = _steady(run)
        values = self._values(seconds)
        return Measurement(
            value=statistics.median(values),
            unit=self._unit,
            spread=relative_spread(values),
            num_samples=len(values),
            step_s=statistics.median(seconds),
            peak_memory_bytes=run.peak_bytes,
            extra=extra,
        )

    def progress(self, stdout: str, metadata: Mapping[str, Any]) -> Progress | None:
        """Return the values of the steady steps so far; None while there are none, or where they are worth nothing."""
        whole_lines = stdout[: stdout.rfind("\n") + 1]  # half a number reads as a whole one
        run = AccelerateRun.read(whole_lines)
        if not run.seconds or self._fault(run, whole_lines, metadata) is not None:
            return None
        return Progress(
            values=self._values(_steady(run)),
            num_iterations=len(run.steps),
            unit=self._unit,
            peak_memory_bytes=run.peak_bytes,
        )

    def describe(self) -> str:
        """Say what is measured."""
        batch = f" at gbs {self.gbs}" if self.gbs else ""
        doubt = "" if self.check else ", whatever the job ran as"
        return f"accelerate {self.objective}{batch}{doubt}, {self.direction}"

    @property
    def _unit(self) -> str:
        if self.objective == "latency":
            return "s"
        return "samples/s" if self.gbs else "steps/s"

    def _values(self, seconds: list[float]) -> list[float]:
        return seconds if self.objective == "latency" else [(self.gbs or 1) / step_s for step_s in seconds]

    def _fault(self, run: AccelerateRun, log: str, metadata: Mapping[str, Any]) -> str | None:
        if (cause := flaw(log)) is not None:
            return cause
        if not log or log.isspace():
            return "the log is empty"
        return run.fault(self.asked(metadata.get("parameters") or {})) if self.check else None

    def _asked_by_arguments(self, params: Mapping[str, Value]) -> RunAsked:
        num_processes = self.n_gpus or 1
        return RunAsked(num_processes=num_processes, wrapper=self.wrapper if num_processes > 1 else None)

    def _from_other_lines(self, log: str, metadata: Mapping[str, Any]) -> Measurement:
        try:
            return DeepSpeedEvaluator(self.objective, self.gbs).measure(log, metadata)
        except ValueError:
            cure = "train for three steps or more, with an optimizer that Accelerator.prepare has prepared"
            raise ValueError(f"the log has no speed, because no two steps were seen; {cure}") from None


def _steady(run: AccelerateRun) -> list[float]:
    seconds = run.seconds
    return seconds[num_warm_up(seconds) :]
