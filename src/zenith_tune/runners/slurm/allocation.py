"""An allocation that the user already has: what it holds, and which part of it each trial's step gets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from zenith_tune.errors import UsageError
from zenith_tune.runners.slurm.client import SlurmClient, hosts
from zenith_tune.runners.slurm.request import MAX_SLOTS, NodeRoom, SlurmRequest, num_slots
from zenith_tune.study.resources import Resources

_IDS = re.compile(r"\d+(?:-\d+)?")
_GPUS = re.compile(r"gpu(?::[^:,()\s]+)?:(\d+)\(")
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
"""From here on are the steps of a batch script or of salloc's own shell, which hold nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSlot:
    """Hold the nodes of one trial's step, and which of the step's GPUs on each are the trial's."""

    nodes: tuple[str, ...]
    first_gpu: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmAllocation:
    """Hold what each node of an allocation gives, by the least of them."""

    job_id: str
    nodes: tuple[str, ...]
    room: NodeRoom
    """What the trials have of each node; no memory where Slurm does not share it out."""
    is_held: bool = False
    """True where a step around the tuner holds all of it: further steps overlap, and the tuner shares it out."""

    @classmethod
    def read(cls, client: SlurmClient, job_id: str, environment: Mapping[str, str]) -> SlurmAllocation:
        """Ask Slurm what the allocation has, and the environment whether a step holds it."""
        groups = [each for each in client.job(job_id, details=True) if "CPU_IDs" in each and "Nodes" in each]
        names = tuple(name for each in groups for name in hosts(each["Nodes"]))
        if not names:
            problem = f"slurm: job {job_id}, which SLURM_JOB_ID names, has no nodes"
            raise UsageError(problem, hint="leave it, or give steps=false")
        memory = [int(each["Mem"]) for each in groups if each.get("Mem", "").isdecimal()]
        num_gpus = min(sum(map(int, _GPUS.findall(each.get("GRES", "")))) for each in groups)
        held = _nodes_of_step_around(environment)
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


def _nodes_of_step_around(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the nodes of the step that this process runs in, none where it runs in no step that holds anything."""
    step_id = environment.get("SLURM_STEP_ID", "")
    is_normal = step_id.isdecimal() and int(step_id) < _FIRST_SPECIAL_STEP
    return tuple(hosts(environment.get("SLURM_STEP_NODELIST", ""))) if is_normal else ()


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
    ranges = [each.partition("-") for each in _IDS.findall(ids)]
    return sum(int(high or low) - int(low) + 1 for low, _, high in ranges)
