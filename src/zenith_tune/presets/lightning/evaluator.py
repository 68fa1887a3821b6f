"""The evaluator of Lightning: the steady speed of a Trainer that ran as what was asked for."""

from __future__ import annotations

from collections.abc import Mapping

from zenith_tune.evaluators.hooked_run import HookedRun
from zenith_tune.evaluators.hooked_speed import HookedEvaluator
from zenith_tune.study.parameters import Value


class LightningEvaluator(HookedEvaluator):
    """The steady speed of a Trainer of Lightning: samples per second, or steps where its data has no batch size."""

    no_steps = "because the Trainer made no two steps: give --args steps=20 or more"

    def describe(self) -> str:
        return f"lightning {self.objective}{'' if self.check else ', whatever the job ran as'}, {self.direction}"

    def _run_extra(self, run: HookedRun) -> dict[str, Value]:
        return {"lightning": str(run.reports[0].get("version")), "wrapper": str(run.reports[0].get("wrapper"))}

    def _batch(self, run: HookedRun, params: Mapping[str, Value]) -> int | None:
        return run.samples

    def _fault(self, run: HookedRun, params: Mapping[str, Value]) -> str | None:
        if not run.reports:
            return "no Trainer of Lightning was seen to fit: name what to tune by --space NAME=VALUES (docs/plugs.md)"
        # How many ranks a script starts is known by its run alone.
        return super()._fault(run, params) if params else None
