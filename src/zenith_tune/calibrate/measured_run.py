"""One measured training run: what was run, where, and what came out."""

from __future__ import annotations

from dataclasses import dataclass, field

from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.describe.model_spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """Hold one run; what its source does not say is None."""

    source: str
    framework: str
    """A name of the framework catalog."""
    stated_framework: str
    """As the source prints it."""
    release: float | None = None
    """When that framework was released, as a year with its fraction."""
    model: ModelSpec | None
    """None where the source does not give the shape."""
    model_name: str
    gpu: str
    """A name of the cluster catalog."""
    num_gpus: int | None
    gpus_per_node: int | None
    cluster: ClusterSpec | None = None
    """The very cluster where it is known; else it is taken for the catalog's."""
    precision: str
    dispatcher: str = "alltoall"
    """How tokens reached their experts, a name of describe.job_spec."""
    seq_len: int | None
    layout: dict[str, int | bool]
    """Columns of a LayoutBatch, as far as they are stated."""
    probed_stage: int | None = None
    """The pipeline rank that ran alone, without any message: time and memory are its own; None for a whole run."""
    step_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    memory_bytes: float | None = None
    memory_kind: str = ""
    """allocated, reserved or device: what the figure counts."""
    out_of_memory: bool = False
    doubts: tuple[str, ...] = ()
    """Why the row is no fair comparison: marks of its source such as FLAG or PROXY."""
    notes: dict[str, str] = field(default_factory=dict)
    """What else the source says, by name."""

    @property
    def landscape(self) -> tuple[str, str]:
        """The model and the cluster, the unit in which data is held out; a model is its shape, whatever its name."""
        shape = self.model
        name = f"{shape.num_layers}x{shape.hidden}x{shape.num_experts}" if shape else self.model_name
        return name, f"{self.gpu}x{self.num_gpus}"
