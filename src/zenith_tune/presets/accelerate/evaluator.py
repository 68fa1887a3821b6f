"""The evaluator of jobs that use Accelerate: the steady speed of a job that ran as what was asked for."""

from __future__ import annotations

from dataclasses import replace

from zenith_tune.evaluators.base import BATCH, EvaluatorRegistry
from zenith_tune.evaluators.engine_log import read_steps
from zenith_tune.evaluators.hooked_run import HookedRun
from zenith_tune.evaluators.hooked_speed import HookedEvaluator
from zenith_tune.evaluators.steps import JobSizes, LoggedSteps


@EvaluatorRegistry.register("accelerate")
class AccelerateEvaluator(HookedEvaluator):
    """The steady speed by the lines of the trial's hook, else by those of DeepSpeed or of the Trainer."""

    def _without_steps(self, log: str, run: HookedRun) -> LoggedSteps:
        logged = read_steps(log)
        trained = logged.extra.get(BATCH)
        batch = trained if isinstance(trained, int) else self.gbs
        if not logged.steps or batch is None:  # any program may show a bar, such as one of what it loads
            return super()._without_steps(log, run)
        extra = {**logged.extra, **self._run_extra(run)}
        return replace(logged, extra=extra, sizes=JobSizes(gbs=batch), shows_progress=False)
