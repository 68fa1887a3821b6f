"""An allocation that the user already has: how many trials it holds as steps, and the command of one step."""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from zenith_tune.errors import UsageError
from zenith_tune.runners.slurm.client import SlurmClient, hosts, megabytes
from zenith_tune.runners.slurm.request import MAX_SLOTS, SlurmRequest
from zenith_tune.runners.slurm.script import HOSTFILE, Launch, launched_command
from zenith_tune.study.resources import Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSlot:
    """Hold the nodes of one trial's step, and which of the step's GPUs on each are the trial's."""

    nodes: tuple[str, ...]
    first_gpu: int = 0


class SlurmSeats:
    """Hand out seats, no part of a node to two trials at once.

    >>> seats = SlurmSeats(("n1", "n2", "n3"), nodes_per_seat=2, slots_per_node=2, gpus_per_seat=4)
    >>> seats.num_seats, seats.take().first_gpu, seats.take().first_gpu
    (2, 0, 4)
    """

    def __init__(
        self, nodes: tuple[str, ...], *, nodes_per_seat: int, slots_per_node: int, gpus_per_seat: int = 0
    ) -> None:
        starts = range(0, len(nodes) - nodes_per_seat + 1, nodes_per_seat)
        groups = [nodes[start : start + nodes_per_seat] for start in starts]
        self._free = [
            StepSlot(nodes=group, first_gpu=index * gpus_per_seat)
            for index in range(slots_per_node)
            for group in groups
        ]
        self.num_seats = len(self._free)
        self._changed = threading.Condition()

    def take(self, avoid: Collection[str] = ()) -> StepSlot:
        """Return a seat, waiting for one if need be; one on nodes to avoid only where no other is free."""
        with self._changed:
            self._changed.wait_for(lambda: self._free)
            slot = next((each for each in self._free if not set(avoid) & set(each.nodes)), self._free[0])
            self._free.remove(slot)
            return slot

    def give_back(self, slot: StepSlot) -> None:
        """Take a seat back."""
        with self._changed:
            self._free.insert(0, slot)
            self._changed.notify()


NODES_FILE = "nodes"
"""Where a step notes in its trial's folder which nodes it runs on."""
_IDS = re.compile(r"\d+(?:-\d+)?")
_GPUS = re.compile(r"gpu(?::[^:,()\s]+)?:(\d+)\(")
# What salloc left in the environment would speak into the step's own options.
_INHERITED = (
    *("SLURM_CPUS_PER_TASK", "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_GRES", "SLURM_NNODES"),
    *("SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_MEM_PER_NODE", "SLURM_NPROCS", "SLURM_NTASKS"),
    *("SLURM_NTASKS_PER_NODE", "SLURM_TRES_PER_TASK", "SLURM_CPU_BIND", "SLURM_GPU_BIND", "SLURM_DISTRIBUTION"),
)
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
"""From here on are the steps of a batch script or of salloc's own shell, which hold nothing."""
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

# Steps that overlap see the same GPUs: each trial keeps to those of its seat, by their place in the list.
_OWN_GPUS = r"""IFS=, read -ra gpus <<< "$CUDA_VISIBLE_DEVICES"
export CUDA_VISIBLE_DEVICES=$(IFS=,; echo "${gpus[*]:{first}:{count}}")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmAllocation:
    """Hold what each node of an allocation gives, by the least of them."""

    job_id: str
    nodes: tuple[str, ...]
    num_cpus: int
    num_gpus: int
    memory_mb: int = 0
    """0 where Slurm does not share memory out."""
    is_held: bool = False
    """True where a step around the tuner holds all of it: further steps overlap, and the tuner shares it out."""

    @classmethod
    def read(cls, client: SlurmClient, job_id: str, environment: Mapping[str, str]) -> SlurmAllocation:
        """Ask Slurm what the allocation has, and hear from the environment whether a step holds it."""
        shown = client.job(job_id, details=True)
        groups = [each for each in shown if "CPU_IDs" in each and "Nodes" in each]
        names = tuple(name for each in groups for name in hosts(each["Nodes"]))
        if not names:
            raise UsageError(
                f"slurm: job {job_id}, which SLURM_JOB_ID names, has no nodes", hint="leave it, or give steps=false"
            )
        memory = [int(each["Mem"]) for each in groups if each.get("Mem", "").isdecimal()]
        num_gpus = min(sum(map(int, _GPUS.findall(each.get("GRES", "")))) for each in groups)
        held = _nodes_of_step_around(environment)
        is_held = bool(held) and set(held) <= set(names)
        if is_held:
            _check_holds_all(environment, job_id, num_gpus)
        return cls(
            job_id=job_id,
            nodes=held if is_held else names,
            num_cpus=min(_count(each["CPU_IDs"]) for each in groups),
            num_gpus=num_gpus,
            memory_mb=min(memory, default=0),
            is_held=is_held,
        )

    def num_slots(self, request: SlurmRequest, needs: Resources) -> int:
        """Return how many trials fit side by side; raises UsageError where not even one does."""
        per_node = self._per_node(request, needs)
        if needs.nodes > len(self.nodes) or not per_node:
            gpus, cpus = needs.gpus_per_node or 0, request.cpus_per_task or 1
            memory = f" and {request.mem} memory" if request.mem and self.memory_mb else ""
            problem = f"slurm: a trial needs {needs.nodes} nodes of {gpus} GPUs and {cpus} CPUs{memory}"
            has = f"job {self.job_id} has {len(self.nodes)} nodes of {self.num_gpus} GPUs and {self.num_cpus} CPUs"
            has += f" and {self.memory_mb} MB" if memory else ""
            raise UsageError(
                f"{problem}, but {has}", hint="ask for less, or give steps=false to submit a job for each trial"
            )
        if self.is_held:
            return min(self.slots(request, needs).num_seats, MAX_SLOTS)
        return min(per_node * len(self.nodes) // needs.nodes, MAX_SLOTS)

    def _per_node(self, request: SlurmRequest, needs: Resources) -> int:
        """Return how many trials' parts fit on one node."""
        fits = [self.num_cpus // (request.cpus_per_task or 1), MAX_SLOTS]
        if needs.gpus_per_node:
            fits.append(self.num_gpus // needs.gpus_per_node)
        if self.memory_mb and request.mem and (wanted_mb := megabytes(request.mem)):
            fits.append(self.memory_mb // wanted_mb)
        return min(fits)

    def slots(self, request: SlurmRequest, needs: Resources) -> SlurmSeats:
        """Return the places that the tuner hands out itself."""
        return SlurmSeats(
            self.nodes,
            nodes_per_seat=needs.nodes,
            slots_per_node=self._per_node(request, needs),
            gpus_per_seat=needs.gpus_per_node or 0,
        )

    def step_command(
        self,
        command: str,
        name: str,
        launch: Launch,
        request: SlurmRequest,
        needs: Resources,
        setup: str = "",
        slot: StepSlot | None = None,
    ) -> str:
        """Return what starts the command as a step of its own, beside others; on its seat, where it has one."""
        command = launched_command(command, launch, needs)
        if not is_step(launch, needs):
            return self._self_launched(command, launch, needs, setup)
        options: Mapping[str, object] = {
            "jobid": self.job_id,
            "job-name": name,
            "nodes": needs.nodes,
            "ntasks": needs.nodes,
            "ntasks-per-node": 1,
            **(self._shared(request, needs) if slot is None else self._overlapping(slot)),
        }
        given = [f"--{option}={value}" for option, value in options.items() if value]
        own = "" if slot is None or not needs.gpus_per_node else _OWN_GPUS
        own = own.replace("{first}", str(slot.first_gpu if slot else 0)).replace("{count}", str(needs.gpus_per_node))
        task = _TASK.replace("{nodes_file}", NODES_FILE).replace("{own_gpus}", own).replace("{setup}", setup)
        unset = [word for name in _INHERITED for word in ("-u", name)]
        how = ["--exact" if slot is None else "--overlap", "--kill-on-bad-exit=1", "--export=ALL"]
        words = ["env", *unset, "srun", *how, *given, *request.extra_words(), "bash", "-c", task]
        return f"ZENITHTUNE_COMMAND={shlex.quote(command)} {shlex.join(words)}"

    def _shared(self, request: SlurmRequest, needs: Resources) -> Mapping[str, object]:
        """Return the options of a step that Slurm finds room for; one that says nothing gets one CPU, all memory."""
        parts = max(self._per_node(request, needs), 1)
        return {
            "gpus-per-node": needs.gpus_per_node,
            "cpus-per-task": request.cpus_per_task or max(self.num_cpus // parts, 1),
            "mem": request.mem or (f"{self.memory_mb // parts}M" if self.memory_mb else None),
            "exclude": ",".join(needs.avoid),
        }

    def _overlapping(self, slot: StepSlot) -> Mapping[str, object]:
        """Return the options of a step that has all of its nodes, as every other one has, and keeps to its part."""
        return {
            "nodelist": ",".join(slot.nodes),
            "gpus-per-node": self.num_gpus,
            "cpus-per-task": self.num_cpus,
            "mem": "0" if self.memory_mb else None,
        }

    def _self_launched(self, command: str, launch: Launch, needs: Resources, setup: str) -> str:
        """Return a command that makes its own steps, as it would be typed in the allocation."""
        slots = needs.gpus_per_node or max(self.num_gpus, 1)
        lines = [f"{name} slots={slots}" for name in self.nodes[: needs.nodes]]
        file = f'printf "%s\\n" {shlex.join(lines)} > "$ZENITHTUNE_TRIAL_FOLDER/{HOSTFILE}"'
        overlap = "export SLURM_OVERLAP=1" if self.is_held else ""
        address = shlex.quote(self.nodes[0])
        meeting = f"export MASTER_ADDR={address} MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))"
        parts = (meeting, setup, overlap, file if launch is Launch.HOSTFILE else "", command)
        return "\n".join(part for part in parts if part)


def is_step(launch: Launch, needs: Resources) -> bool:
    """Tell whether a trial is one step; a command that starts its own ranks on several nodes makes its own."""
    return needs.nodes == 1 or launch is Launch.EACH_NODE


def _nodes_of_step_around(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the nodes of the step that this process runs in, none where it runs in no step that holds anything."""
    step_id = environment.get("SLURM_STEP_ID", "")
    is_normal = step_id.isdecimal() and int(step_id) < _FIRST_SPECIAL_STEP
    return tuple(hosts(environment.get("SLURM_STEP_NODELIST", ""))) if is_normal else ()


def _check_holds_all(environment: Mapping[str, str], job_id: str, num_gpus: int) -> None:
    """Refuse a step with some of its nodes' GPUs: which of them belong to other steps cannot be told."""
    held = [gpu for gpu in environment.get("SLURM_STEP_GPUS", "").split(",") if gpu]
    if len(held) < num_gpus:
        has = f"has {len(held)} of the {num_gpus} GPUs of job {job_id} on its node"
        problem = f"slurm: inside srun trials share the GPUs of the step around them, but step {job_id}"
        problem += f".{environment['SLURM_STEP_ID']} {has}"
        raise UsageError(problem, hint="run under salloc or sbatch, or give srun all of them")


def _count(ids: str) -> int:
    """Count a list of numbers such as 0-3,8."""
    ranges = [each.partition("-") for each in _IDS.findall(ids)]
    return sum(int(high or low) - int(low) + 1 for low, _, high in ranges)
