"""Runs trials on a Slurm cluster: one job for each, or as steps inside an allocation that the user already has."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from zenith_tune.errors import UsageError
from zenith_tune.registry import keywords_of
from zenith_tune.runners.base import (
    End,
    Job,
    JobRequest,
    JobResult,
    OnState,
    RunnerRegistry,
    nobody_listens,
)
from zenith_tune.runners.launch.own_command import own_variables
from zenith_tune.runners.local.runner import LocalRunner
from zenith_tune.runners.slurm.client import SlurmClient, SlurmError, SlurmRefusedError
from zenith_tune.runners.slurm.job import SlurmJob, SlurmWatcher
from zenith_tune.runners.slurm.request import (
    MAX_SLOTS,
    NodeRoom,
    SlurmArguments,
    check_request,
    gives_whole_nodes,
    num_slots,
)
from zenith_tune.runners.slurm.script import Launch, SlurmScript, launched_command
from zenith_tune.runners.slurm.step import SlurmStep, SlurmSteps, end_steps
from zenith_tune.runners.slurm.submission import SlurmSubmission
from zenith_tune.runners.slurm.verdict import ENDED, SlurmRecord, describe_status, judge
from zenith_tune.study.files import TrialFolder
from zenith_tune.study.resources import Resources

_SLOTS_PER_WAITING = 4
"""Slurm takes a second or more to start a job: of so many that run, one more waits to follow the next that ends."""
_MAY_CHANGE = ("busy", "not available (down", "temporarily")
"""Phrases of a refusal that does not hold for ever."""


@RunnerRegistry.register("slurm")
class SlurmRunner(LocalRunner):
    """Trials as Slurm jobs, or as steps where the tuner itself runs inside an allocation."""

    shares_machine = False

    @keywords_of(SlurmArguments)
    def __init__(self, given: SlurmArguments) -> None:
        self._request = replace(given, partition=given.partition or os.environ.get("SBATCH_PARTITION"))
        around = os.environ.get("SLURM_JOB_ID", "")
        if given.steps and not around:
            problem = "slurm: steps=true needs an allocation, but SLURM_JOB_ID is not set"
            raise UsageError(problem, hint="run inside salloc")
        super().__init__(grace_s=given.grace_s)
        self._fitting: frozenset[str] = frozenset()
        """The nodes that a trial may run on, once the study is prepared."""
        self._client = SlurmClient(given.call_timeout_s)
        self._watcher = SlurmWatcher(self._client.jobs, given.max_pause_s)
        is_inside = given.steps or (given.steps is None and around)
        self._steps = SlurmSteps(around, self._client, self._request, given.setup) if is_inside else None

    def prepare(self, resources: Resources, parallel: int | None = 1) -> None:
        needs = self._request.needs(resources)
        try:
            room = self._steps.prepare(needs) if self._steps else self._prepare_jobs(resources, needs)
        except SlurmError as error:
            hint = "look at `sinfo`, or choose another --runner"
            raise UsageError(f"slurm must answer, but {error}", hint=hint) from error
        ahead = self._request.ahead
        ahead = 0 if self._steps else room // _SLOTS_PER_WAITING if ahead is None else ahead
        self.num_slots = min(room + ahead, MAX_SLOTS) if parallel is None else parallel
        kind, more = "Slurm job", ""
        if self._steps is not None:
            # A step that finds no room would only wait in its srun.
            self.num_slots, kind = min(self.num_slots, room), f"step of job {self._steps.job_id}"
            more = f", not {parallel}: the job has no room for more" if (parallel or 0) > room else ""
        side = f"up to {min(room, self.num_slots)} side by side" if self.num_slots > 1 else "one at a time"
        waiting = f", and {self.num_slots - room} wait in the queue" if self.num_slots > room else ""
        self.own_variables = own_variables(has_gpus=needs.gpus_per_node is not None)
        num_nodes = len(self._fitting) if self._steps is None else len(self._steps.allocation.nodes)
        self.shares_nodes = self.num_slots > 1 and room * needs.nodes > num_nodes
        self.note = f"each trial is a {kind} on {needs.describe()}; {side}{waiting}{more}"

    def _prepare_jobs(self, resources: Resources, needs: Resources) -> int:
        partitions = self._client.partitions()
        nodes = [NodeRoom.read(shown) for shown in self._client.nodes()]
        fitting = check_request(self._request, needs, partitions, nodes)
        self._fitting = frozenset(node.name for node in fitting)
        try:
            self._client.test(self._request.options(resources))
        except SlurmRefusedError as error:
            # With too many nodes down, Slurm may say no to what will start once they are back.
            is_for_ever = sum(node.is_in for node in fitting) >= needs.nodes
            if is_for_ever and not any(phrase in str(error) for phrase in _MAY_CHANGE):
                raise UsageError(f"slurm would never start such a trial ({error})", hint="change --slurm") from error
        return num_slots(self._request, needs, fitting, gives_whole_nodes(self._request, partitions))

    def start(self, request: JobRequest) -> Job:
        request = replace(request, folder=request.folder.absolute())
        resources, needs = request.resources, self._request.needs(request.resources)
        named = self._request.launch
        launch = Launch.of(request.command, needs.nodes) if named == "auto" else Launch(named)
        if self._steps is not None:
            return SlurmStep(self, request, self._steps, needs, launch)
        script = SlurmScript(
            command=launched_command(request.command, launch, needs),
            folder=request.folder,
            cwd=Path.cwd(),
            launch=launch,
            gpus_per_node=needs.gpus_per_node,
            setup=self._request.setup,
            num_nodes=needs.nodes,
            grace_s=self.grace_s,
        ).text()
        if self._fitting and len(self._fitting.difference(resources.avoid)) < needs.nodes:
            # Too few without those that failed; Slurm itself keeps off them for as long as they are down.
            resources = replace(resources, avoid=())
        options = self._request.options(resources)
        return SlurmJob(self, request, self._client, self._watcher, options=options, script=script)

    def find(self, folder: Path, *, timeout_s: float | None = None, on_state: OnState = nobody_listens) -> Job | None:
        files = TrialFolder(folder.absolute())
        submission = SlurmSubmission(self._client, files)
        if "allocation" in submission.noted():
            return None
        status = submission.find()
        if status is None or status.state in ENDED:
            return None
        on_state(describe_status(status))
        request = JobRequest(
            command="", folder=files.path, resources=Resources(), timeout_s=timeout_s, on_state=on_state
        )
        return SlurmJob(self, request, self._client, self._watcher, found=status)

    def recover(self, folder: Path) -> JobResult | None:
        files = TrialFolder(folder.absolute())
        submission = SlurmSubmission(self._client, files)
        noted = submission.noted()
        if "allocation" in noted:
            result = super().recover(files.path)
            end_steps(self._client, str(noted["allocation"]), str(noted.get("name")))
            return result
        record = SlurmRecord.read(files, str(submission.noted().get("job") or ""))
        if (job := self.find(folder)) is not None:
            job.cancel()
        status = submission.find()
        ended_by_itself = status is None or judge(status, record, None).end is End.EXITED
        if record.exit_code is None or not ended_by_itself:
            return None
        return JobResult(end=End.EXITED, exit_code=record.exit_code, duration_s=record.duration_s)

    def interrupt(self) -> None:
        super().interrupt()
        self._watcher.ring()

    def reset(self) -> None:
        super().reset()
        self._watcher.reset()

    def close(self) -> None:
        if not self.is_closed:
            self._watcher.close()
        super().close()
