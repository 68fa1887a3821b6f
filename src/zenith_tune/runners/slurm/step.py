"""Trials as steps inside an allocation that the user has: each is a job of the local runner behind a prefix of srun."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from zenith_tune.errors import UsageError
from zenith_tune.runners.base import End, JobRequest, JobResult
from zenith_tune.runners.launch.gang import HOSTFILE
from zenith_tune.runners.local.room import SlotPool
from zenith_tune.runners.local.runner import LocalJob, LocalRunner
from zenith_tune.runners.slurm.client import SlurmClient, SlurmError, hosts
from zenith_tune.runners.slurm.request import MAX_SLOTS, NodeRoom, SlurmRequest, num_slots
from zenith_tune.runners.slurm.script import Launch, launched_command
from zenith_tune.runners.slurm.submission import SlurmSubmission
from zenith_tune.study.resources import Resources
from zenith_tune.study.trial_log import TrialLog

_GPUS = re.compile(r"gpu(?::[^:,()\s]+)?:([0-9]+)\(")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSlot:
    """The nodes of one trial's step, and which of the step's GPUs on each are the trial's."""

    nodes: tuple[str, ...]
    first_gpu: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmAllocation:
    """An allocation, whose nodes all count as the least of them."""

    job_id: str
    nodes: tuple[str, ...]
    room: NodeRoom
    """The trials' share of each node; no memory where Slurm does not share it out."""
    is_held: bool = False
    """Whether a step around the tuner holds all of it: further steps overlap, and the tuner shares it out."""

    @classmethod
    def read(cls, client: SlurmClient, job_id: str, environment: Mapping[str, str]) -> SlurmAllocation:
        """Ask Slurm what the allocation has, and the environment whether a step holds it."""
        groups = client.node_groups(job_id)
        names = tuple(name for each in groups for name in hosts(each["Nodes"]))
        if not names:
            problem = f"slurm: job {job_id}, which SLURM_JOB_ID names, has no nodes"
            raise UsageError(problem, hint="leave it, or give steps=false")
        memory = [int(each["Mem"]) for each in groups if each.get("Mem", "").isdecimal()]
        num_gpus = min(sum(map(int, _GPUS.findall(each.get("GRES", "")))) for each in groups)
        # The steps of a batch script or of salloc's own shell, which have the highest numbers, hold nothing.
        step_id = environment.get("SLURM_STEP_ID", "")
        is_in_step = step_id.isdecimal() and int(step_id) < 0xFFFFFFF0
        held = tuple(hosts(environment.get("SLURM_STEP_NODELIST", ""))) if is_in_step else ()
        is_held = bool(held) and set(held) <= set(names)
        if is_held:
            _check_holds_all(environment, job_id, num_gpus)
        return cls(
            job_id=job_id,
            nodes=held if is_held else names,
            room=NodeRoom(
                num_cpus=min(_count(each["CPU_IDs"]) for each in groups),
                num_gpus=num_gpus,
                memory_mb=min(memory, default=0),
            ),
            is_held=is_held,
        )

    def num_slots(self, request: SlurmRequest, needs: Resources) -> int:
        """Return how many trials fit side by side; raises UsageError where not even one does."""
        room = self.room
        if needs.nodes > len(self.nodes) or not room.holds(request, needs.gpus_per_node):
            gpus, cpus = needs.gpus_per_node or 0, request.cpus_per_task or 1
            memory = f" and {request.mem} memory" if request.mem and room.memory_mb else ""
            problem = f"slurm: a trial needs {needs.nodes} nodes of {gpus} GPUs and {cpus} CPUs{memory}"
            has = f"job {self.job_id} has {len(self.nodes)} nodes of {room.num_gpus} GPUs and {room.num_cpus} CPUs"
            has += f" and {room.memory_mb} MB" if memory else ""
            hint = "ask for less, or give steps=false to submit a job for each trial"
            raise UsageError(f"{problem}, but {has}", hint=hint)
        if self.is_held:
            return min(len(self.slots(request, needs)), MAX_SLOTS)
        return num_slots(request, needs, [room] * len(self.nodes))

    def slots(self, request: SlurmRequest, needs: Resources) -> list[StepSlot]:
        """Return the parts that the tuner hands out itself, no part of a node twice; different nodes come first."""
        starts = range(0, len(self.nodes) - needs.nodes + 1, needs.nodes)
        groups = [self.nodes[start : start + needs.nodes] for start in starts]
        per_node, num_gpus = self.room.holds(request, needs.gpus_per_node), needs.gpus_per_node or 0
        return [
            StepSlot(nodes=group, first_gpu=index * num_gpus)
            for index in range(min(per_node, MAX_SLOTS))
            for group in groups
        ]

    def step_options(self, request: SlurmRequest, needs: Resources, slot: StepSlot | None) -> dict[str, object]:
        """Return srun's options for a trial's share: one that Slurm finds room for, or that of its slot."""
        if slot is not None:  # it has all of its nodes, as every other step has, and keeps to its part
            return {
                "nodelist": ",".join(slot.nodes),
                "gpus-per-node": self.room.num_gpus,
                "cpus-per-task": self.room.num_cpus,
                "mem": "0" if self.room.memory_mb else None,
            }
        # A step that asks for nothing would get one CPU and all memory.
        parts, memory_mb = max(self.room.holds(request, needs.gpus_per_node), 1), self.room.memory_mb
        return {
            "gpus-per-node": needs.gpus_per_node,
            "cpus-per-task": request.cpus_per_task or max(self.room.num_cpus // parts, 1),
            "mem": request.mem or (f"{memory_mb // parts}M" if memory_mb else None),
            "exclude": ",".join(needs.avoid),
        }


def _check_holds_all(environment: Mapping[str, str], job_id: str, num_gpus: int) -> None:
    """Refuse a step with some of its nodes' GPUs: which of them belong to other steps cannot be seen."""
    held = [gpu for gpu in environment.get("SLURM_STEP_GPUS", "").split(",") if gpu]
    if len(held) < num_gpus:
        has = f"has {len(held)} of the {num_gpus} GPUs of job {job_id} on its node"
        problem = f"slurm: inside srun trials share the GPUs of the step around them, but step {job_id}"
        problem += f".{environment['SLURM_STEP_ID']} {has}"
        raise UsageError(problem, hint="run under salloc or sbatch, or give srun all of them")


def _count(ids: str) -> int:
    """Count a list of numbers such as 0-3,8."""
    ranges = [each.partition("-") for each in re.findall(r"[0-9]+(?:-[0-9]+)?", ids)]
    return sum(int(high or low) - int(low) + 1 for low, _, high in ranges)


_NODE_FAILED = re.compile(r"srun: error: Node failure on (\S+)|slurmstepd: error: .{1,200} DUE TO NODE FAILURE")
_REVOKED = re.compile(r"slurmstepd: error: \*\*\* STEP .{1,200} CANCELLED AT .{1,60}")
_OVER = re.compile(r"srun: .{0,200}(?:allocation .{0,40}revoked|Job [0-9]+ has (?:been revoked|completed)|has expired)")
_LOOK_S = 0.1
"""How often a step that waits looks whether it has begun."""
_REPORT_WAIT_S = 1.0
"""How long a step may take to begin before it is reported as pending."""
_NODES_FILE = "nodes"
"""Where a step notes in its trial's folder which nodes it runs on."""
# What salloc left in the environment would speak into the step's own options.
_INHERITED = (
    *("SLURM_CPUS_PER_TASK", "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_GRES", "SLURM_NNODES"),
    *("SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_MEM_PER_NODE", "SLURM_NPROCS", "SLURM_NTASKS"),
    *("SLURM_NTASKS_PER_NODE", "SLURM_TRES_PER_TASK", "SLURM_CPU_BIND", "SLURM_GPU_BIND", "SLURM_DISTRIBUTION"),
)
# Each task of a step runs this; the command comes in the environment, which other users cannot see.
_TASK = r"""
mapfile -t nodes < <(scontrol show hostnames "$SLURM_STEP_NODELIST")
export MASTER_ADDR=${nodes[0]} MASTER_PORT=$((20000 + (SLURM_JOB_ID * 101 + SLURM_STEP_ID) % 12000))
export NNODES=$SLURM_STEP_NUM_NODES NODE_RANK=$SLURM_NODEID PET_MASTER_PORT=$MASTER_PORT
[ "$NNODES" = 1 ] || export PET_MASTER_ADDR=$MASTER_ADDR PET_NNODES=$NNODES PET_NODE_RANK=$NODE_RANK
[ "$SLURM_PROCID" != 0 ] || echo "$SLURM_STEP_NODELIST" > "$ZENITHTUNE_TRIAL_FOLDER/{nodes_file}"
command=$ZENITHTUNE_COMMAND; unset ZENITHTUNE_COMMAND
{own_gpus}{setup}
exec bash -o pipefail -c "$command"
"""
# Steps that overlap see the same GPUs: each trial keeps to those of its slot, by their place in the list.
_OWN_GPUS = r"""IFS=, read -ra gpus <<< "$CUDA_VISIBLE_DEVICES"
export CUDA_VISIBLE_DEVICES=$(IFS=,; echo "${gpus[*]:{first}:{count}}")
"""


class SlurmSteps:
    """The allocation around the tuner, and what of it the tuner itself hands out."""

    def __init__(self, job_id: str, client: SlurmClient, request: SlurmRequest, setup: str) -> None:
        self.job_id = job_id
        self.client = client
        self._request = request
        self._setup = setup
        self._slots: SlotPool[StepSlot] | None = None
        """None where Slurm itself finds the room for each step."""

    @cached_property
    def allocation(self) -> SlurmAllocation:
        """Return what the allocation has, asked when it is first needed."""
        return SlurmAllocation.read(self.client, self.job_id, os.environ)

    def prepare(self, needs: Resources) -> int:
        """Return how many trials fit side by side; raises UsageError where not even one does."""
        room = self.allocation.num_slots(self._request, needs)
        self._slots = SlotPool(self.allocation.slots(self._request, needs)) if self.allocation.is_held else None
        return room

    def take(self, needs: Resources) -> StepSlot | None:
        """Return a slot, None where Slurm finds the room."""
        if self._slots is None and self.allocation.is_held:
            self._slots = SlotPool(self.allocation.slots(self._request, needs))
        if self._slots is None:
            return None
        return self._slots.take(lambda slot: not set(needs.avoid) & set(slot.nodes))

    def give_back(self, slot: StepSlot | None) -> None:
        if self._slots is not None and slot is not None:
            self._slots.give_back(slot)

    def command(self, command: str, name: str, launch: Launch, needs: Resources, slot: StepSlot | None = None) -> str:
        """Return what starts the command as a step of its own, next to others; in its slot, where it has one."""
        command = launched_command(command, launch, needs)
        if not is_one_step(launch, needs):
            return self._self_launched(command, launch, needs)
        options = {"jobid": self.job_id, "job-name": name, "nodes": needs.nodes, "ntasks": needs.nodes}
        options |= {"ntasks-per-node": 1, **self.allocation.step_options(self._request, needs, slot)}
        given = [f"--{option}={value}" for option, value in options.items() if value]
        own = "" if slot is None or not needs.gpus_per_node else _OWN_GPUS
        own = own.replace("{first}", str(slot.first_gpu if slot else 0)).replace("{count}", str(needs.gpus_per_node))
        task = _TASK.replace("{nodes_file}", _NODES_FILE).replace("{own_gpus}", own).replace("{setup}", self._setup)
        unset = [argument for name in _INHERITED for argument in ("-u", name)]
        how = ["--exact" if slot is None else "--overlap", "--kill-on-bad-exit=1", "--export=ALL"]
        argv = ["env", *unset, "srun", *how, *given, *self._request.extra_options(), "bash", "-c", task]
        return f"ZENITHTUNE_COMMAND={shlex.quote(command)} {shlex.join(argv)}"

    def _self_launched(self, command: str, launch: Launch, needs: Resources) -> str:
        """Return a command that makes its own steps, as it would be typed in the allocation."""
        allocation = self.allocation
        slots = needs.gpus_per_node or max(allocation.room.num_gpus, 1)
        lines = [f"{name} slots={slots}" for name in allocation.nodes[: needs.nodes]]
        file = f'printf "%s\\n" {shlex.join(lines)} > "$ZENITHTUNE_TRIAL_FOLDER/{HOSTFILE}"'
        overlap = "export SLURM_OVERLAP=1" if allocation.is_held else ""
        address = shlex.quote(allocation.nodes[0])
        meeting = f"export MASTER_ADDR={address} MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))"
        parts = (meeting, self._setup, overlap, file if launch is Launch.HOSTFILE else "", command)
        return "\n".join(part for part in parts if part)


class SlurmStep(LocalJob):
    """One step; srun waits until the allocation has room for it, and its time counts from then."""

    def __init__(
        self, runner: LocalRunner, request: JobRequest, steps: SlurmSteps, needs: Resources, launch: Launch
    ) -> None:
        self._steps, self._needs, self._launch = steps, needs, launch
        self._step_slot: StepSlot | None = None
        self._name = ""
        self._submitted = self._last_look = time.monotonic()
        self._has_reported_wait = False
        super().__init__(runner, request)

    def start(self) -> None:
        if not is_one_step(self._launch, self._needs) and self.runner.num_slots > 1:
            problem = "a command that starts its own ranks on several nodes has an allocation to itself"
            many = f"{self.runner.num_slots} are to run side by side"
            raise UsageError(f"{problem}, but {many}", hint="give --parallel 1, or steps=false")
        submission = SlurmSubmission(self._steps.client, self.files)
        self._name = submission.prefix
        self._step_slot = self._steps.take(self._needs)
        try:
            command = self._steps.command(self.request.command, self._name, self._launch, self._needs, self._step_slot)
            submission.note(name=self._name, allocation=self._steps.job_id)
            # What an earlier run of the trial noted would look like this one's note that it has begun.
            (self.files.path / _NODES_FILE).unlink(missing_ok=True)
            self.spawn(command)
        except BaseException:
            self._steps.give_back(self._step_slot)
            raise
        if is_one_step(self._launch, self._needs):
            self.began = None  # srun runs, the step perhaps not yet
        else:
            self.request.on_state(f"running in job {self._steps.job_id}")

    def look(self) -> JobResult | None:
        self._look_for_begin()
        return super().look()

    def pause(self, limit_s: float) -> None:
        super().pause(limit_s if self.began is not None else min(limit_s, _LOOK_S))

    def collect(self, end: End) -> JobResult:
        self._look_for_begin()
        result = replace(super().collect(end), place=self._place())
        if end is not End.EXITED:
            end_steps(self._steps.client, self._steps.job_id, self._name)
        self._steps.give_back(self._step_slot)
        return self._judged(result) if result.exit_code else result

    def _look_for_begin(self) -> None:
        """See whether the step has begun, by its own note of its nodes."""
        if self.began is not None:
            return
        now = time.monotonic()
        if place := self._place():
            self.began = self._last_look
            self.request.on_state(f"running on {place}")
        elif not self._has_reported_wait and now - self._submitted > _REPORT_WAIT_S:
            self._has_reported_wait = True
            self.request.on_state(f"pending (waits for room in job {self._steps.job_id})")
        self._last_look = now

    def _place(self) -> str:
        return ",".join(hosts(self.files.read(self.files.path / _NODES_FILE).strip()))

    def _judged(self, result: JobResult) -> JobResult:
        text = TrialLog(self.log_path).text()[-20_000:]
        if failed := _NODE_FAILED.search(text):
            place = failed[1].rstrip(",") if failed[1] else result.place
            return replace(result, end=End.LOST, exit_code=None, place=place, reason=f"node failure on {place}")
        if revoked := _OVER.search(text) or _REVOKED.search(text):
            return replace(result, end=End.REVOKED, exit_code=None, reason=revoked[0])
        return result


def is_one_step(launch: Launch, needs: Resources) -> bool:
    """Tell whether a trial is one step; a command that starts its own ranks on several nodes makes its own."""
    return needs.nodes == 1 or launch is Launch.EACH_NODE


def end_steps(client: SlurmClient, job_id: str, name: str) -> None:
    """End the steps of this name, if any still run."""
    with contextlib.suppress(SlurmError):
        for step_id in client.steps(job_id, name):
            client.cancel(step_id)
