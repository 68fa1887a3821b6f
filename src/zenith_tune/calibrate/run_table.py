"""Measured runs as arrays, so that one call estimates them all."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.describe.framework_spec import FrameworkSpec
from zenith_tune.describe.gpu_catalog import find_gpu, gpu_name, gpu_spec, node_fields
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.estimate.estimate import FloatArray
from zenith_tune.estimate.machine import Machine
from zenith_tune.estimate.workload import Workload
from zenith_tune.layouts.layout_batch import LayoutBatch

OTHER_JOBS = ("sft", "lora", "peft", "finetun")
"""Words in the name of a run that does not train the whole model from scratch."""
DEFAULTS: dict[str, int | bool] = {
    **dict.fromkeys(("tp", "pp", "vp", "cp", "ep", "etp", "dp", "mbs", "gbs"), 1),
    **dict.fromkeys(("zero", "recompute", "recompute_layers"), 0),
    "sequence_parallel": True,
    "flash_attention": True,
}


@dataclass(frozen=True, slots=True)
class RunTable:
    """Hold runs and what the estimates need of them."""

    runs: list[MeasuredRun]
    workload: Workload
    machine: Machine
    layouts: LayoutBatch
    step_s: FloatArray
    """Measured; nan where it was not."""
    probed_stage: FloatArray
    """The pipeline rank that was run alone; nan for a whole run."""

    @classmethod
    def of(cls, runs: list[MeasuredRun], framework: FrameworkSpec) -> RunTable:
        """Build the table of runs that are all `usable`."""
        models = [run.model for run in runs if run.model is not None]
        jobs = [_job(run, framework) for run in runs]
        columns: dict[str, list[int | bool]] = defaultdict(list)
        for run in map(with_default_batch, runs):
            for name, value in (DEFAULTS | run.layout).items():
                columns[name].append(value)
        return cls(
            runs=runs,
            workload=Workload.stack([Workload.of(model, job) for model, job in zip(models, jobs, strict=True)]),
            machine=Machine.stack([Machine.of(run_cluster(run), run.precision) for run in runs]),
            layouts=LayoutBatch.of(**columns),
            step_s=np.array([run.step_s or np.nan for run in runs]),
            probed_stage=np.array([np.nan if run.probed_stage is None else run.probed_stage for run in runs]),
        )

    @property
    def landscapes(self) -> list[tuple[str, str]]:
        """The landscape of each run: what is held out together."""
        return [run.landscape for run in self.runs]


def _job(run: MeasuredRun, framework: FrameworkSpec) -> JobSpec:
    seq_len, dispatcher = run.seq_len or 0, run.dispatcher
    return JobSpec(seq_len=seq_len, framework=framework, precision=run.precision, dispatcher=dispatcher)


def run_cluster(run: MeasuredRun) -> ClusterSpec:
    """Return the cluster that a run was measured on."""
    if run.cluster is not None:
        return run.cluster
    name, num_gpus = gpu_name(run.gpu), run.num_gpus or 1
    fields = node_fields(name)
    if run.gpus_per_node:
        fields["gpus_per_node"] = run.gpus_per_node
    domain = fields["fast_domain"]
    fields["fast_domain"] = max(size for size in range(1, min(domain, num_gpus) + 1) if num_gpus % size == 0)
    return ClusterSpec(name=f"{name}x{num_gpus}", gpu=gpu_spec(name), num_gpus=num_gpus, **fields)


def unusable(run: MeasuredRun) -> str | None:
    """Return why a run says nothing of the speed of a layout, or None."""
    layout = run.layout
    if run.out_of_memory or not run.step_s:
        return "no speed measured"
    if run.doubts:
        return "marked by its source: " + ", ".join(run.doubts)
    if run.model is None:
        return "shape of the model not stated"
    if not run.num_gpus or not run.seq_len:
        return "number of GPUs or sequence length not stated"
    if any(word in run.model_name.lower() for word in OTHER_JOBS) or "SFT Performance" in run.notes:
        return "fine-tuning"
    if run.framework == "jax":
        return "a framework without a model here"
    if "dp" not in layout or not (layout.keys() & {"gbs", "mbs"}):
        return "layout not stated"
    if layout.get("ep", 1) > 1 and not run.model.num_experts:
        return "experts split in a model that has none"
    if "mbs" not in layout and run.model.num_experts:
        return "micro-batch not stated, on which the experts' share of tokens hangs"
    if layout.get("gbs", layout.get("mbs", 1)) % (layout.get("mbs", 1) * layout["dp"]):
        return "batch does not divide"
    if layout.get("ep", 1) * layout.get("etp", 1) > run.num_gpus:
        return "more expert ranks than GPUs"
    known = run.cluster is not None or find_gpu(run.gpu) is not None
    return None if known else f"GPU {run.gpu} not in the catalog"


def with_default_batch(run: MeasuredRun) -> MeasuredRun:
    """Return the run with the batch that a single rank without accumulation has, where none is stated."""
    layout = dict(run.layout)
    layout.setdefault("gbs", layout.get("mbs", 1) * layout.get("dp", 1))
    return replace(run, layout=layout)
