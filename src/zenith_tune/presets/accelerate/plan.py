"""What a plan needs of a job that uses Accelerate: its model, its machines and the framework behind the backend."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zenith_tune.describe.job_spec import JobSpec, PlanSubject
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.presets.accelerate.backend import Backend
from zenith_tune.presets.accelerate.deepspeed import DeepSpeedBackend
from zenith_tune.presets.accelerate.job import AccelerateJob
from zenith_tune.presets.subject import LookedUp, job_cluster
from zenith_tune.strategies.zero_progressive.ds_config import DsConfig

if TYPE_CHECKING:
    from zenith_tune.describe.cluster_spec import ClusterSpec


def job_model(job: AccelerateJob) -> ModelSpec:
    """Return a job's model, which may have to be asked for over the network, or raise why it is not known."""
    from zenith_tune.describe.model_catalog import load_model

    if job.model is None:
        problem = "the model is not known, because the command names none by --model_name_or_path"
        raise UsageError(problem, hint="give --args model=NAME, a Hugging Face id or the path of a config.json")
    return load_model(job.model)


def accelerate_subject(
    backend: Backend, looked_up: LookedUp[ModelSpec], cluster: str | None, topology: str | None = None
) -> PlanSubject:
    """Return model, cluster and job, or raise UsageError with what is missing and how to give it."""
    # Not at the top: the catalogs are loaded only where a plan is made.
    from zenith_tune.describe.framework_spec import load_framework
    from zenith_tune.strategies.zero_progressive.feasibility import ZeroSubject

    job, model = backend.job, looked_up.required()
    if job.seq_len is None:
        raise UsageError("the command has no --max_seq_length, --block_size or the like", hint="give --args seq=2048")
    if backend.own_micro_batch is None:
        raise UsageError(
            "the dataloader's batch size is not known", hint="give --args mbs_option=--batch_size, or gbs=256"
        )
    spec = JobSpec(seq_len=job.seq_len, framework=load_framework(backend.framework), precision=job.precision)
    known: dict[str, Any] = {
        "model": model,
        "cluster": job_cluster(cluster, job.num_gpus, topology),
        "job": spec,
    }
    if not isinstance(backend, DeepSpeedBackend):
        return PlanSubject(**known)
    config = job.ds_config or DsConfig(values={}, source=job.settings.source)
    return ZeroSubject(**known, config=config, num_ranks=backend.own_ranks)


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
    from zenith_tune.presets.subject import job_cluster

    try:
        return job_cluster(cluster, job.num_gpus)
    except UsageError:
        if cluster is not None:  # what was named must not be passed over
            raise
        return None
