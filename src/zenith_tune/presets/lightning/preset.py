"""Training by a Trainer of Lightning: micro-batch, strategy, precision and compilation, by a hook in its process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import TuningEvaluator
from zenith_tune.evaluators.hooked_run import HookedRun, RunAsked
from zenith_tune.evaluators.hooked_speed import HookedEvaluator
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.lightning.space import LEVERS, LightningJob, LightningSpace
from zenith_tune.presets.shared.hooked_preset import HookedPreset
from zenith_tune.presets.shared.launched_gpus import started_gpus
from zenith_tune.presets.shared.live_model import LiveModel
from zenith_tune.study.parameters import Value

PLANNED = ("32-true", "16-mixed", "bf16-mixed")


class LightningEvaluator(HookedEvaluator):
    """The steady speed of a Trainer of Lightning: samples per second, or steps where its data has no batch size."""

    title = "lightning"
    no_steps = "because the Trainer made no two steps: give --args steps=20 or more"

    def _run_extra(self, run: HookedRun) -> dict[str, Value]:
        return {"lightning": str(run.reports[0].get("version")), "wrapper": str(run.reports[0].get("wrapper"))}

    def _batch(self, run: HookedRun, params: Mapping[str, Value]) -> int | None:
        return run.samples

    def _fault(self, run: HookedRun, params: Mapping[str, Value]) -> str | None:
        if not run.reports:
            return "no Trainer of Lightning was seen to fit: name what to tune by --space NAME=VALUES (docs/plugs.md)"
        # How many ranks a script starts is known by its run alone.
        return super()._fault(run, params) if params else None


@PresetRegistry.register("lightning")
class LightningPreset(HookedPreset[LightningSpace, LightningJob]):
    """Tune a script that trains by a Trainer of Lightning, however it is started.

    The global batch stays what it is: accumulation follows the micro-batch. Trials are without logging, validation
    and checkpoints.
    """

    title, declared, hook, file_stem = "preset lightning", LEVERS, "lightning", "lightning_arguments"

    def _read_job(self, command: str) -> LightningJob:
        return LightningJob(num_processes=self._given.n_gpus or started_gpus(command) or 1, seq_len=self._given.seq)

    def _run_job(self, log: str) -> tuple[HookedRun, LightningJob | None]:
        run = HookedRun.read(log)
        if not run.reports:
            return run, None
        report, live = run.reports[0], LiveModel.of(run.model)
        shown = live.input_shape[1] if live and len(live.input_shape) > 1 else None
        world, seq_len = int(report["processes"]), self._given.seq or shown
        return run, self._space.job.seen(run, num_processes=world, seq_len=seq_len, report=report)

    def _search(self, job: LightningJob) -> LightningSpace:
        return LightningSpace.of(job, self._given.search, self._given.mbs_max)

    def _job_notes(self) -> list[str]:
        job, axes = self._space.job, self._space.axes
        if not job.can_resize:
            return ["the batch stays: it is not that of one torch DataLoader, or the script accumulates itself"]
        notes = [job.batch_note("Trainer")]
        if job.report.get("batch_norm") and len(axes["mbs"]) == 1:
            notes.append(
                "the micro-batch stays as it is, because BatchNorm sees it: --args search=mbs+strategy tries it"
            )
        return notes

    def _hooked_values(self, params: Mapping[str, Value]) -> dict[str, Value]:
        return self._space.settings(params)

    def evaluator(self) -> TuningEvaluator:
        found = LightningEvaluator(n_gpus=self._space.job.num_processes, check=self._given.check)
        found.asked = self.asked
        return found

    def asked(self, params: Mapping[str, Value]) -> RunAsked:
        """Return what the job of a point must say of itself, its levers among it."""
        found = super().asked(params)
        return replace(found, settings={**found.settings, **self._space.lever_values(LEVERS, params)})

    def _looked_up(self) -> PlanSubject:
        job = self._space.job
        if not job.is_known:
            raise UsageError("the model is seen when your own command runs")
        if job.settings.get("precision") not in PLANNED or not job.can_resize:
            raise UsageError("layouts are planned where precision is 32 or mixed, and the batch is known")
        return super()._looked_up()
