"""One measured training run: what was run, where, and what came out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.layouts.layout_batch import FloatArray, LayoutBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One measured run; what its source does not state is None."""

    source: str
    framework: str
    """A name in the framework catalog."""
    stated_framework: str = ""
    """The framework's name as a table prints it."""
    release: float | None = None
    """Release of the framework, as a year with its fraction."""
    model: ModelSpec | None
    """The model's shape; None where the source does not give it."""
    model_name: str
    gpu: str
    """A name in the cluster catalog."""
    num_gpus: int | None
    gpus_per_node: int | None
    cluster: ClusterSpec | None = None
    """The cluster; None for the catalog's."""
    precision: str
    dispatcher: str = "alltoall"
    """One of describe.job_spec.DISPATCHERS."""
    seq_len: int | None
    layout: dict[str, int | bool]
    """The stated columns of a LayoutBatch."""
    probed_stage: int | None = None
    """The pipeline rank that ran alone, without messages; None for a whole run."""
    step_s: float | None = None
    memory_bytes: float | None = None
    memory_kind: str = ""
    """allocated, reserved or device."""
    out_of_memory: bool = False
    flags: tuple[str, ...] = ()
    """Marks of the source, such as FLAG or PROXY, that make the row no fair comparison."""
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def landscape(self) -> tuple[str, str]:
        """The model's shape and the cluster: runs of one landscape are held out together."""
        shape = self.model
        name = f"{shape.num_layers}x{shape.hidden}x{shape.num_experts}" if shape else self.model_name
        return name, f"{self.gpu}x{self.num_gpus}"

    @property
    def author(self) -> str:
        """Who measured it, on a machine and with software of their own; some have several tables."""
        return next((name for name in SEVERAL_TABLES if name in self.source), self.source)


SEVERAL_TABLES = ("h200", "vtrain")
"""Part of the names of tables that one author measured on one machine."""

DEFAULT_COLUMNS: dict[str, int | bool] = {
    **dict.fromkeys(("tp", "pp", "vp", "cp", "ep", "etp", "dp", "mbs", "gbs"), 1),
    **dict.fromkeys(("schedule", "zero", "recompute", "recompute_layers"), 0),
    "sequence_parallel": True,
    "flash_attention": True,
}
"""Values of a layout that its source does not state."""


def stack_layouts(layouts: Iterable[Mapping[str, int | bool]]) -> LayoutBatch:
    """Return the stated columns of layouts as one batch."""
    rows = [DEFAULT_COLUMNS | dict(layout) for layout in layouts]
    return LayoutBatch.of(**{name: [row[name] for row in rows] for name in DEFAULT_COLUMNS})


def probed_ranks(runs: Iterable[MeasuredRun]) -> FloatArray:
    """Return the pipeline rank that ran alone in each run; nan for a whole run."""
    return np.array([np.nan if run.probed_stage is None else run.probed_stage for run in runs])
