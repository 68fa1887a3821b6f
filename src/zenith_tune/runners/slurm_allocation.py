"""An allocation that the user already has: how many trials it holds as steps, and the command of one step."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from zenith_tune.errors import UsageError
from zenith_tune.resources import Resources
from zenith_tune.runners.slurm_capacity import MAX_SLOTS
from zenith_tune.runners.slurm_client import SlurmClient
from zenith_tune.runners.slurm_launch import HOSTFILE, Launch, launched_command
from zenith_tune.runners.slurm_request import SlurmRequest
from zenith_tune.runners.slurm_text import hosts

NODES_FILE = "nodes"
"""Where a step notes in its trial's folder which nodes it runs on."""
_IDS = re.compile(r"\d+(?:-\d+)?")
_GPUS = re.compile(r"gpu(?::[^:,()\s]+)?:(\d+)\(")
# What salloc left in the environment would speak into the step's own options.
_INHERITED = (
    *("SLURM_CPUS_PER_TASK", "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_GRES", "SLURM_NNODES"),
    *("SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_MEM_PER_NODE", "SLURM_NPROCS", "SLURM_NTASKS"),
    *("SLURM_NTASKS_PER_NODE", "SLURM_TRES_PER_TASK"),
)
# Each task of a step runs this; the command comes in the environment, which other users cannot see.
_TASK = r"""
mapfile -t nodes < <(scontrol show hostnames "$SLURM_STEP_NODELIST")
export MASTER_ADDR=${nodes[0]} MASTER_PORT=$((20000 + (SLURM_JOB_ID * 101 + SLURM_STEP_ID) % 12000))
export NNODES=$SLURM_STEP_NUM_NODES NODE_RANK=$SLURM_NODEID PET_MASTER_PORT=$MASTER_PORT
[ "$NNODES" = 1 ] || export PET_MASTER_ADDR=$MASTER_ADDR PET_NNODES=$NNODES PET_NODE_RANK=$NODE_RANK
[ "$SLURM_PROCID" != 0 ] || echo "$SLURM_STEP_NODELIST" > "$ZENITHTUNE_TRIAL_FOLDER/{nodes_file}"
command=$ZENITHTUNE_COMMAND; unset ZENITHTUNE_COMMAND
{setup}
exec bash -o pipefail -c "$command"
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

    @classmethod
    def read(cls, client: SlurmClient, job_id: str) -> SlurmAllocation:
        """Ask Slurm what the allocation has."""
        shown = client.job(job_id, details=True)
        groups = [each for each in shown if "CPU_IDs" in each and "Nodes" in each]
        names = tuple(name for each in groups for name in hosts(each["Nodes"]))
        if not names:
            raise UsageError(
                f"slurm: job {job_id}, which SLURM_JOB_ID names, has no nodes: leave it, or give steps=false"
            )
        memory = [int(each["Mem"]) for each in groups if each.get("Mem", "").isdecimal()]
        return cls(
            job_id=job_id,
            nodes=names,
            num_cpus=min(_count(each["CPU_IDs"]) for each in groups),
            num_gpus=min(sum(map(int, _GPUS.findall(each.get("GRES", "")))) for each in groups),
            memory_mb=min(memory, default=0),
        )

    def num_slots(self, request: SlurmRequest, needs: Resources) -> int:
        """Return how many trials fit side by side; raises UsageError where not even one does."""
        has = f"job {self.job_id} has {len(self.nodes)} nodes of {self.num_gpus} GPUs and {self.num_cpus} CPUs"
        gpus, cpus = needs.gpus_per_node or 0, request.cpus_per_task or 1
        if needs.nodes > len(self.nodes) or gpus > self.num_gpus or cpus > self.num_cpus:
            law = f"slurm: a trial needs {needs.nodes} nodes of {gpus} GPUs and {cpus} CPUs"
            raise UsageError(f"{law}, but {has}: ask for less, or give steps=false to submit a job for each trial")
        per_node = min(self.num_cpus // cpus, self.num_gpus // gpus if gpus else MAX_SLOTS)
        return min(per_node * len(self.nodes) // needs.nodes, MAX_SLOTS)

    def step_command(
        self, command: str, name: str, launch: Launch, request: SlurmRequest, needs: Resources, setup: str = ""
    ) -> str:
        """Return what starts the command as a step of its own, beside others."""
        command = launched_command(command, launch)
        if needs.nodes > 1 and launch is not Launch.EACH_NODE:
            return self._self_launched(command, launch, needs, setup)
        gpus = needs.gpus_per_node
        parts = self.num_gpus // gpus if gpus else self.num_cpus // (request.cpus_per_task or 1)
        options: Mapping[str, object] = {
            "jobid": self.job_id,
            "job-name": name,
            "nodes": needs.nodes,
            "ntasks": needs.nodes,
            "ntasks-per-node": 1,
            "gpus-per-node": gpus,
            # A step that says nothing gets one CPU and all of the memory.
            "cpus-per-task": request.cpus_per_task or max(self.num_cpus // max(parts, 1), 1),
            "mem": request.mem or (f"{self.memory_mb // max(parts, 1)}M" if self.memory_mb else None),
            "exclude": ",".join(needs.avoid),
        }
        given = [f"--{option}={value}" for option, value in options.items() if value]
        task = _TASK.replace("{nodes_file}", NODES_FILE).replace("{setup}", setup)
        unset = [word for name in _INHERITED for word in ("-u", name)]
        words = [
            "env",
            *unset,
            "srun",
            "--exact",
            "--kill-on-bad-exit=1",
            "--export=ALL",
            *given,
            *request.extra_words(),
        ]
        return f"ZENITHTUNE_COMMAND={shlex.quote(command)} {shlex.join([*words, 'bash', '-c', task])}"

    def _self_launched(self, command: str, launch: Launch, needs: Resources, setup: str) -> str:
        """Return a command that makes its own steps, as it would be typed in the allocation."""
        slots = needs.gpus_per_node or max(self.num_gpus, 1)
        lines = [f"{name} slots={slots}" for name in self.nodes[: needs.nodes]]
        file = f'printf "%s\\n" {shlex.join(lines)} > "$ZENITHTUNE_TRIAL_FOLDER/{HOSTFILE}"'
        return "\n".join(part for part in (setup, file if launch is Launch.HOSTFILE else "", command) if part)


def _count(ids: str) -> int:
    """Count a list of numbers such as 0-3,8."""
    ranges = [each.partition("-") for each in _IDS.findall(ids)]
    return sum(int(high or low) - int(low) + 1 for low, _, high in ranges)
