"""An allocation that the user already has: what it holds, and which part of it each trial's step gets."""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from zenith_tune.errors import UsageError
from zenith_tune.runners.slurm.client import SlurmClient, hosts, megabytes
from zenith_tune.runners.slurm.request import MAX_SLOTS, SlurmRequest
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


class StepSlots:
    """Hand out slots, no part of a node to two trials at once.

    >>> slots = StepSlots(("n1", "n2", "n3"), nodes_per_slot=2, slots_per_node=2, gpus_per_slot=4)
    >>> slots.num_slots, slots.take().first_gpu, slots.take().first_gpu
    (2, 0, 4)
    """

    def __init__(
        self, nodes: tuple[str, ...], *, nodes_per_slot: int, slots_per_node: int, gpus_per_slot: int = 0
    ) -> None:
        starts = range(0, len(nodes) - nodes_per_slot + 1, nodes_per_slot)
        groups = [nodes[start : start + nodes_per_slot] for start in starts]
        self._free = [
            StepSlot(nodes=group, first_gpu=index * gpus_per_slot)
            for index in range(slots_per_node)
            for group in groups
        ]
        self.num_slots = len(self._free)
        self._changed = threading.Condition()

    def take(self, avoid: Collection[str] = ()) -> StepSlot:
        """Return a slot, waiting for one if need be; one on nodes to avoid only where no other is free."""
        with self._changed:
            self._changed.wait_for(lambda: self._free)
            slot = next((each for each in self._free if not set(avoid) & set(each.nodes)), self._free[0])
            self._free.remove(slot)
            return slot

    def give_back(self, slot: StepSlot) -> None:
        """Take a slot back."""
        with self._changed:
            self._free.insert(0, slot)
            self._changed.notify()


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
            num_cpus=min(_count(each["CPU_IDs"]) for each in groups),
            num_gpus=num_gpus,
            memory_mb=min(memory, default=0),
            is_held=is_held,
        )

    def num_slots(self, request: SlurmRequest, needs: Resources) -> int:
        """Return how many trials fit side by side; raises UsageError where not even one does."""
        per_node = self.per_node(request, needs)
        if needs.nodes > len(self.nodes) or not per_node:
            gpus, cpus = needs.gpus_per_node or 0, request.cpus_per_task or 1
            memory = f" and {request.mem} memory" if request.mem and self.memory_mb else ""
            problem = f"slurm: a trial needs {needs.nodes} nodes of {gpus} GPUs and {cpus} CPUs{memory}"
            has = f"job {self.job_id} has {len(self.nodes)} nodes of {self.num_gpus} GPUs and {self.num_cpus} CPUs"
            has += f" and {self.memory_mb} MB" if memory else ""
            hint = "ask for less, or give steps=false to submit a job for each trial"
            raise UsageError(f"{problem}, but {has}", hint=hint)
        if self.is_held:
            return min(self.slots(request, needs).num_slots, MAX_SLOTS)
        return min(per_node * len(self.nodes) // needs.nodes, MAX_SLOTS)

    def per_node(self, request: SlurmRequest, needs: Resources) -> int:
        """Return how many trials' parts fit on one node."""
        fits = [self.num_cpus // (request.cpus_per_task or 1), MAX_SLOTS]
        if needs.gpus_per_node:
            fits.append(self.num_gpus // needs.gpus_per_node)
        if self.memory_mb and request.mem and (wanted_mb := megabytes(request.mem)):
            fits.append(self.memory_mb // wanted_mb)
        return min(fits)

    def slots(self, request: SlurmRequest, needs: Resources) -> StepSlots:
        """Return the parts that the tuner hands out itself."""
        return StepSlots(
            self.nodes,
            nodes_per_slot=needs.nodes,
            slots_per_node=self.per_node(request, needs),
            gpus_per_slot=needs.gpus_per_node or 0,
        )

    def step_options(self, request: SlurmRequest, needs: Resources, slot: StepSlot | None) -> dict[str, object]:
        """Return srun's options for a trial's share: one that Slurm finds room for, or that of its slot."""
        if slot is not None:  # it has all of its nodes, as every other step has, and keeps to its part
            return {
                "nodelist": ",".join(slot.nodes),
                "gpus-per-node": self.num_gpus,
                "cpus-per-task": self.num_cpus,
                "mem": "0" if self.memory_mb else None,
            }
        parts = max(self.per_node(request, needs), 1)  # a step that asks for nothing gets one CPU and all memory
        return {
            "gpus-per-node": needs.gpus_per_node,
            "cpus-per-task": request.cpus_per_task or max(self.num_cpus // parts, 1),
            "mem": request.mem or (f"{self.memory_mb // parts}M" if self.memory_mb else None),
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
