"""Levers of Accelerate's FSDP backend, version 2; its DeepSpeed backend has those of preset deepspeed, in a JSON.

Keys are those of Accelerate 1.15. Prefetching is not among them: Accelerate refuses its keys with version 2. Whether
weights are resharded after the forward pass, and activations recomputed, is searched with the layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.layouts.layout import Layout
from zenith_tune.presets.accelerate.job import AccelerateJob
from zenith_tune.presets.levers import ASSUMED, LeverDeclaration, set_levers
from zenith_tune.presets.shared.accelerate_settings import BARE, FSDP, PARALLELISM
from zenith_tune.study.parameters import Params, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class FsdpSituation:
    """A point of a job that levers are asked for, with model and cluster where they are known."""

    job: AccelerateJob
    params: Params
    layout: Layout
    subject: PlanSubject | None = None

    def memory_of(self, layout: Layout) -> float | None:
        """Return by which share of its predicted memory the point changes with another layout."""
        if self.subject is None:
            return None
        from zenith_tune.calibrate.calibration_file import default_calibration
        from zenith_tune.estimates.memory import estimate_memory
        from zenith_tune.estimates.workload import Workload
        from zenith_tune.layouts.layout_batch import batch_of

        job = self.subject.job
        memory = default_calibration(job.framework.name).memory
        workload, layouts = Workload.of(self.subject.model, job), batch_of([self.layout, layout])
        now, then = estimate_memory(workload, layouts, job.framework, memory).device_bytes
        return float(then / now - 1)


OFF_WORDS = ("no", "false", "0")
Written = Value | Callable[[AccelerateJob], Value]
"""A value of the file, or how it follows from the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FsdpLever(LeverDeclaration[FsdpSituation]):
    """A lever of Accelerate's own file."""

    sets: Mapping[str, Written]

    def changes(self, job: AccelerateJob) -> dict[str, Value]:
        return {key: value(job) if callable(value) else value for key, value in self.sets.items()}

    def reported(self, job: AccelerateJob) -> dict[str, Value]:
        """Return what the hook of a trial says where it is on."""
        changes = self.changes(job).items()
        return {key.removeprefix(BARE[FSDP]).removeprefix(f"{PARALLELISM}_"): value for key, value in changes}

    def is_for(self, at: FsdpSituation) -> bool:
        """Return whether it can be turned on for a point of the job, whose file does not have it yet."""
        own = at.job.settings
        has_it = any(str(own.get(key) or "no").lower() not in OFF_WORDS for key in self.sets)
        return not has_it and self.goes(at)


def _has_nodes(at: FsdpSituation) -> bool:
    """Return whether there are several machines of several GPUs, and the file has no other mesh."""
    is_plain = PARALLELISM not in at.job.settings.values
    return at.job.num_machines > 1 and at.job.gpus_per_machine > 1 and is_plain


def _inside_machines(at: FsdpSituation) -> float | None:
    job, layout = at.job, at.layout
    inside = replace(
        layout, num_gpus=job.gpus_per_machine, global_batch=max(layout.global_batch // job.num_machines, 1)
    )
    return at.memory_of(inside)


FSDP_LEVERS = (
    FsdpLever(
        name="hybrid_shard",
        sets={
            f"{PARALLELISM}_dp_replicate_size": lambda job: job.num_machines,
            f"{PARALLELISM}_dp_shard_size": lambda job: job.gpus_per_machine,
        },
        goes=_has_nodes,
        saves={"dp": 0.5},
        memory_at=_inside_machines,
        memory=0.3,
        is_alone=True,
        source=f"{ASSUMED}: weights are gathered inside a machine; Zhao et al. 2023 (PyTorch FSDP, arXiv 2304.11277)",
    ),
    FsdpLever(
        name="compile",
        sets={"dynamo_backend": "INDUCTOR", "dynamo_use_regional_compilation": True},
        saves={"compute": 0.1, "overhead": 0.3},
        is_alone=True,
        source=f"{ASSUMED}: fused kernels and fewer launches, layer by layer",
    ),
    FsdpLever(
        name="checkpointing_offload",
        sets={"fsdp_activation_checkpointing_offload": True},
        goes=lambda at: bool(at.params["checkpointing"]),
        saves={"compute": -0.05},
        memory=-0.1,
        source=f"{ASSUMED}: what layers keep goes to the host's memory and back",
    ),
    FsdpLever(
        name="offload",
        sets={"fsdp_offload_params": True},
        saves={"optimizer": -60.0},
        memory=-0.3,
        source="NVIDIA, Megatron-Bridge's measured runs: an optimizer takes 60 times as long on the host",
    ),
)


def fsdp_changes(job: AccelerateJob, levers: Mapping[str, Value]) -> dict[str, Value]:
    """Return what levers set in the file."""
    return {key: value for lever in set_levers(FSDP_LEVERS, levers) for key, value in lever.changes(job).items()}


def fsdp_reported(job: AccelerateJob, levers: Mapping[str, Value]) -> dict[str, Value]:
    """Return what the hook of a trial says of levers."""
    return {key: value for lever in set_levers(FSDP_LEVERS, levers) for key, value in lever.reported(job).items()}
