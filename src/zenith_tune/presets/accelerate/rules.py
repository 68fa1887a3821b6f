"""Which degrees of tensor parallelism are worth a trial where NVLink does not join all GPUs of a machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.errors import UsageError
from zenith_tune.presets.accelerate.job import AccelerateJob
from zenith_tune.presets.subject import job_cluster

if TYPE_CHECKING:
    from zenith_tune.describe.cluster_spec import ClusterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorIsland:
    """Hold how many GPUs of a machine NVLink joins, where that is not all of them."""

    size: int
    reason: str

    def explain(self, tp: int, own_tp: int) -> str | None:
        """Return why a degree is not tried; what the job itself has always is."""
        return None if tp in (1, own_tp) or tp <= self.size else f"tp must stay within {self.size}: {self.reason}"


def tensor_island(
    job: AccelerateJob, cluster: str | None, topology: str | None, subject: PlanSubject | UsageError
) -> TensorIsland | None:
    """Return the island, or None where every GPU of a machine is joined or nothing is known of the machines."""
    if topology is not None:
        return _of_file(job, Path(topology))
    machines = _machines(job, cluster, subject)
    # A machine with fewer GPUs than the job takes of each, such as a login node, is not where it runs.
    if machines is None or not machines.fast_domain < job.gpus_per_machine <= machines.gpus_per_node:
        return None
    from zenith_tune.describe.topology import tensor_reason

    return TensorIsland(size=machines.fast_domain, reason=tensor_reason(machines))


def _of_file(job: AccelerateJob, path: Path) -> TensorIsland | None:
    """Return what a file tells of each machine, whatever GPUs it has."""
    from zenith_tune.describe.topology import node_reason, read_topology

    whole = read_topology(path)
    if whole.num_gpus < job.gpus_per_machine:
        problem = f"--topology must tell the {job.gpus_per_machine} GPUs that the job takes of a machine"
        raise UsageError(
            f"{problem}, but {path} has {whole.num_gpus}", hint="save `nvidia-smi topo -m` on one of its machines"
        )
    node = whole.first(job.gpus_per_machine)
    size = node.fast_domain
    return None if size == node.num_gpus else TensorIsland(size=size, reason=node_reason(size, node))


def _machines(job: AccelerateJob, cluster: str | None, subject: PlanSubject | UsageError) -> ClusterSpec | None:
    if isinstance(subject, PlanSubject):
        return subject.cluster
    try:
        return job_cluster(cluster, job.num_gpus)
    except UsageError:
        if cluster is not None:  # what was named must not be passed over
            raise
        return None
