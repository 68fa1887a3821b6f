"""A layout written down for a framework, ready to run."""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import Layout, layout_name

SIZES = ("tp", "pp", "vp", "cp", "ep", "etp")
"""The parallel sizes besides data parallelism."""
DATA_PARALLEL_ONLY = ("deepspeed", "fsdp", "hf-accelerate")
"""Frameworks that are planned with no other."""
CHECKPOINTING_NOTE = "switch gradient checkpointing on in the model: the file does not"


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission:
    """A file for a framework, and what its reader should know."""

    file_name: str
    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A layout that is to be written down, with its job and machines."""

    layout: Layout
    model: ModelSpec
    cluster: ClusterSpec
    job: JobSpec

    @property
    def title(self) -> str:
        at = self.layout
        where = f"{self.model.name} on {self.cluster.name}, batch {at.global_batch}, sequence {self.job.seq_len}"
        return " ".join(f"{layout_name(at)} for {where}".split())

    def refuse_sizes(self, problem: str, hint: str) -> None:
        """Raise where anything but data parallelism is above 1."""
        if cut := [name for name in SIZES if getattr(self.layout, name) > 1]:
            raise UsageError(f"{problem}, but {layout_name(self.layout)} has {' and '.join(cut)} above 1", hint=hint)

    @property
    def gpus_per_node(self) -> int:
        """GPUs of one node, of which there may be only one and that not full."""
        return min(self.cluster.gpus_per_node, self.layout.num_gpus)

    @property
    def num_nodes(self) -> int:
        """Nodes that the layout's GPUs fill."""
        return -(-self.layout.num_gpus // self.gpus_per_node)
