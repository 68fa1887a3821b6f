"""The evaluators of speed by the lines of a trial's hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.evaluators.base import OtherSettingsError
from zenith_tune.evaluators.engine_log import flaw
from zenith_tune.evaluators.hooked_run import PLAIN, WRAPPER_NAMES, HookedRun, HookedStep, RunAsked
from zenith_tune.evaluators.speed import SpeedEvaluator, Units
from zenith_tune.evaluators.steps import SAMPLES, SECONDS, JobSizes, LoggedSteps, Step
from zenith_tune.study.parameters import Value

UNITS: Units = {"throughput": (SAMPLES, "steps/s"), "latency": (SECONDS,)}
Asked = Callable[[Mapping[str, Value]], RunAsked]
"""What a point asks for; no values stand for the user's own command."""


class HookedEvaluator(SpeedEvaluator):
    """The steady speed of a job that ran as what was asked for.

    `throughput` is samples per second, or steps per second where `gbs`, the global batch, is not known; `latency` is
    seconds per step. A job that ran as something else than `n_gpus` processes with `wrapper` around the model has no
    value, unless `check` is false.
    """

    units = UNITS
    title: ClassVar[str] = "accelerate"
    no_steps: ClassVar[str] = (
        "because no two steps were seen; train for three steps or more, with an optimizer that Accelerator.prepare has"
        " prepared"
    )
    """Why a log whose hooks saw no two steps has no speed."""

    def __init__(
        self,
        objective: str = "throughput",
        gbs: int | None = None,
        n_gpus: int | None = None,
        wrapper: str = PLAIN,
        check: bool = True,
    ) -> None:
        super().__init__(objective, gbs=gbs, n_gpus=n_gpus)
        if wrapper not in WRAPPER_NAMES:
            raise UnknownNameError("wrapper", wrapper, WRAPPER_NAMES)
        if check and n_gpus is None:
            problem = "evaluator accelerate compares the processes of a job with n_gpus, but has none"
            raise UsageError(problem, hint="give n_gpus=8, or check=false")
        self.gbs, self.n_gpus, self.wrapper, self.check = gbs, n_gpus, wrapper, check
        self.asked: Asked = self._asked_by_arguments
        """What a trial's own settings must have been; a preset knows more about them than these arguments."""

    def read_run(self, log: str) -> HookedRun:
        return HookedRun.read(log)

    def read(self, log: str, metadata: Mapping[str, Any]) -> LoggedSteps:
        """Return the timed steps of a run that is what was asked for."""
        run, params = self.read_run(log), metadata.get("parameters") or {}
        cause = flaw(log) or ("the log is empty" if not log or log.isspace() else None)
        if cause is not None:
            raise ValueError(cause)
        if self.check and (fault := self._fault(run, params)) is not None:
            raise (OtherSettingsError if params and run.reports else ValueError)(fault)
        if not run.timed:
            return self._without_steps(log, run)
        return LoggedSteps(
            steps=hooked_steps(run),
            num_trained=len(run.steps),
            peak_bytes=run.peak_bytes,
            sizes=JobSizes(gbs=self._batch(run, params)),
            extra=self._run_extra(run),
        )

    def describe(self) -> str:
        batch = f" at gbs {self.gbs}" if self.gbs else ""
        unchecked = "" if self.check else ", whatever the job ran as"
        return f"{self.title} {self.objective}{batch}{unchecked}, {self.direction}"

    def _run_extra(self, run: HookedRun) -> dict[str, Value]:
        if not run.reports:
            return {}
        return {"accelerate": str(run.reports[0].get("version")), "wrapper": str(run.reports[0].get("wrapper"))}

    def _batch(self, run: HookedRun, params: Mapping[str, Value]) -> int | None:
        """Return the samples of an update; None where only steps are counted."""
        return None if self.gbs is None else run.batch(self.asked(params)) or self.gbs

    def _fault(self, run: HookedRun, params: Mapping[str, Value]) -> str | None:
        return run.fault(self.asked(params))

    def _asked_by_arguments(self, params: Mapping[str, Value]) -> RunAsked:
        num_processes = self.n_gpus or 1
        wrapper = self.wrapper if num_processes > 1 else None
        return RunAsked(num_processes=num_processes, wrapper=wrapper, batch=self.gbs)

    def _without_steps(self, log: str, run: HookedRun) -> LoggedSteps:
        """Return the steps of a log whose hooks saw no two, or raise ValueError."""
        raise ValueError(f"the log has no speed, {self.no_steps}")


TRAINING = "training"
"""The phase of what is left of a step: log-probabilities and the update, which GPUs do while nobody waits for them."""


def hooked_steps(run: HookedRun) -> list[Step]:
    """Return the steps of a run with their times, and their phases where its trainer times some."""
    has_phases, timed = any(step.phases for step in run.steps), zip(run.seconds, run.timed, strict=True)
    return [
        Step(number=step.number, seconds=step_s, phases=_all_phases(step, step_s) if has_phases else {})
        for step_s, (_, step) in timed
    ]


def _all_phases(step: HookedStep, step_s: float) -> dict[str, float]:
    return {**step.phases, TRAINING: max(step_s - sum(step.phases.values()), 0.0)}


class OptimizerStepEvaluator(HookedEvaluator):
    """The steady speed of a torch optimizer's steps, in a program that no framework describes.

    It is the time of a step, or samples per second where `samples` gives how many a point trains at each.
    """

    def __init__(self, hint: str, samples: Callable[[Mapping[str, Value]], int | None] | None = None) -> None:
        """Take the advice for programs without such steps."""
        super().__init__("throughput" if samples else "latency", check=False)
        self._hint, self._samples = hint, samples

    def describe(self) -> str:
        what = "samples per second by the steps of an optimizer" if self._samples else "seconds of an optimizer's step"
        return f"{what}, {self.direction}"

    def _batch(self, run: HookedRun, params: Mapping[str, Value]) -> int | None:
        return self._samples(params) if self._samples else None

    def _without_steps(self, log: str, run: HookedRun) -> LoggedSteps:
        raise ValueError(f"no two steps of an optimizer of torch were seen: {self._hint}")
