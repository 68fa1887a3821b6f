"""Runs single ranks of a layout one after the other, each for a few steps, and reads what they measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from zenith_tune.evaluators.failures.failures import classify
from zenith_tune.layouts.layout import Layout
from zenith_tune.planner.planner import Planner
from zenith_tune.presets.megatron_lm_run import PretrainRun
from zenith_tune.probe.fake_rank import FakeRank, fake_rank, probed_stages
from zenith_tune.probe.probed_layout import ProbedLayout, ProbedStage
from zenith_tune.probe.stage_plan import stage_plans
from zenith_tune.probe.stage_probe import StageProbe
from zenith_tune.probe.step_record import StepRecord, read_log, read_record
from zenith_tune.probe.used_memory import UsedMemory
from zenith_tune.runners.base import End, Job, JobResult, Runner
from zenith_tune.shell.secrets import find_secrets, mask, mask_file
from zenith_tune.study.files import TrialFolder, write_json
from zenith_tune.study.resources import Resources
from zenith_tune.study.trial import Outcome
from zenith_tune.study.trial_log import TrialLog

LOOK_S = 0.5
"""How often a running rank is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prober:
    """Probe layouts of one job."""

    planner: Planner
    runner: Runner
    folder: Path
    run_of: Callable[[Layout], PretrainRun]
    """The user's run with the options of a layout."""
    num_steps: int
    """Whole steps after the first that are measured."""
    timeout_s: float | None = None
    """Of one rank."""
    tell: Callable[[str], None] = lambda line: None

    def probe(self, layout: Layout, number: int = 1) -> ProbedLayout:
        """Run the stages that matter; after one that fails no other is run, as the layout does not train anyway."""
        planned, stages = self.planner.evaluate([layout])[0], probed_stages(layout.pp)
        plans, probed = stage_plans(self.planner, layout, stages), []
        for plan in plans:
            self.tell(f"{planned.name}: stage {plan.stage} of {layout.pp}")
            place = TrialFolder(self.folder / f"layout-{number}" / f"stage-{plan.stage}")
            stage = self._stage(layout, plan.stage, place)
            probed.append(ProbedStage(probe=stage, plan=plan, num_micro_batches=layout.num_micro_batches))
            if not stage.ok:
                break
        return ProbedLayout(planned=planned, stages=tuple(probed))

    def _stage(self, layout: Layout, stage: int, files: TrialFolder) -> StageProbe:
        files.path.mkdir(parents=True, exist_ok=True)
        record = files.path / "steps.jsonl"
        rank = fake_rank(self.run_of(layout), layout, stage, record)
        secrets = find_secrets(rank.command)
        files.command.write_text(f"#!/usr/bin/env bash\n{mask(rank.command, secrets)}\n", encoding="utf-8")
        job = self.runner.submit(rank.command, files.path, Resources(), timeout_s=self.timeout_s)
        memory = UsedMemory()
        try:
            result = self._wait(job, record, files, memory)
        finally:
            job.cancel()  # whatever went wrong, nothing may be left running, and no secret in the log
            mask_file(files.log, secrets)
        found = replace(self._read(rank, files, record, result, memory), command=mask(rank.command, secrets))
        write_json(files.trial, asdict(found))  # the last of its files: a rank without it was cut off
        return found

    def _wait(self, job: Job, record: Path, files: TrialFolder, memory: UsedMemory) -> JobResult:
        while (result := job.wait(LOOK_S)) is None:
            steps = read_record(record)
            if steps.source == "nothing":
                memory.look()
                steps = read_log(TrialLog(files.log).text())
            if len(steps.steps_s) >= self.num_steps:
                job.stop()
        return result

    def _read(
        self, rank: FakeRank, files: TrialFolder, record: Path, result: JobResult, memory: UsedMemory
    ) -> StageProbe:
        log = TrialLog(files.log).text()
        steps = read_record(record)
        if steps.source == "nothing":
            steps = read_log(log)
        steps = steps.cut_to(self.num_steps)
        outcome, cause = _outcome(log, result, steps)
        return StageProbe(
            stage=rank.stage,
            rank=rank.rank,
            outcome=outcome,
            cause=cause,
            num_micro_batches=rank.num_micro_batches,
            step_s=steps.step_s,
            num_steps=len(steps.steps_s),
            allocated_bytes=steps.allocated_bytes,
            reserved_bytes=steps.reserved_bytes,
            device_bytes=steps.device_bytes or memory.most_bytes,
            gpu=steps.gpu,
            source=steps.source if steps.reserved_bytes else "nvidia-smi" if memory.most_bytes else steps.source,
            duration_s=result.duration_s,
        )


def _outcome(log: str, result: JobResult, steps: StepRecord) -> tuple[Outcome, str]:
    if result.end is End.CANCELLED:
        return Outcome.CANCELLED, "interrupted"
    if result.end is End.STOPPED or (result.exit_code == 0 and steps.steps_s):
        return Outcome.OK, ""
    failure = classify(log, result.exit_code, timed_out=result.end is End.TIMED_OUT)
    if failure is not None:
        return failure.outcome, failure.message
    return Outcome.ERROR, "it ended without a step of training; its log says why"
