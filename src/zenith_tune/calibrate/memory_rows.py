"""Measured runs as the memory model takes them: workloads, layouts, and the pipeline rank that was measured."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.describe.framework_spec import FrameworkSpec
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.estimate.estimate import FloatArray
from zenith_tune.estimate.memory import estimate_memory, fullest_stage
from zenith_tune.estimate.memory_coefficients import MemoryCoefficients
from zenith_tune.estimate.workload import Workload
from zenith_tune.layouts.layout_batch import BoolArray, LayoutBatch
from zenith_tune.layouts.nanotron_constraints import check_filled_stages, check_micro_batches

MEASURED_ON = {"ultrascale_playbook": "first", "mcore_ci_golden": "last"}
"""By source, the pipeline rank whose memory is printed; that of the others is taken for the fullest.

nanotron logs on rank 0 of the world (helpers.py, log_throughput), Megatron's tensorboard writer is the last rank.
"""
LEFT_OUT = ("t5", "mimo", "hybrid", "multimodal-llava", "nemotron")
"""Folders of Megatron Core's tests of models that are no plain decoders: two stacks, vision parts, Mamba layers."""
UNFUSED_CONTAINER = re.compile(r"CI golden values lts\w*")
UNFUSED_UNTIL = re.compile(r"golden last changed \w+ 2025")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRows:
    """Hold runs of one framework as arrays."""

    runs: list[MeasuredRun]
    framework: FrameworkSpec
    workload: Workload
    layouts: LayoutBatch
    measured_on: npt.NDArray[np.str_]
    """The pipeline rank that was measured, in words: "first", "last", or "" for the fullest."""
    probed_stage: FloatArray
    """Its number where a probe says it, else not a number."""

    @classmethod
    def of(cls, runs: Sequence[MeasuredRun], framework: FrameworkSpec) -> Self:
        """Take the runs as they are; each must be `usable`."""
        jobs = [(run, JobSpec(seq_len=run.seq_len or 1, framework=framework)) for run in runs]
        workloads = [Workload.of(run.model, job) for run, job in jobs if run.model is not None]
        columns = [layout_columns(run) for run in runs]
        names = sorted({name for column in columns for name in column})
        defaults = {"gbs": 1, "vp": 1, "ep": 1, "etp": 1, "cp": 1, "tp": 1, "pp": 1, "dp": 1, "mbs": 1}
        arrays = {name: [column.get(name, defaults.get(name, 0)) for column in columns] for name in names}
        return cls(
            runs=list(runs),
            framework=framework,
            workload=Workload.stack(workloads),
            layouts=LayoutBatch.of(**arrays),
            measured_on=np.array([MEASURED_ON.get(run.source, "") for run in runs]),
            probed_stage=np.array([np.nan if run.probed_stage is None else run.probed_stage for run in runs]),
        )

    def take(self, chosen: BoolArray) -> Self:
        """Return the runs that are chosen."""
        runs = [run for run, is_chosen in zip(self.runs, chosen, strict=True) if is_chosen]
        return replace(
            self,
            runs=runs,
            workload=self.workload.take(chosen),
            layouts=self.layouts.take(chosen),
            measured_on=self.measured_on[chosen],
            probed_stage=self.probed_stage[chosen],
        )

    @property
    def measured_bytes(self) -> FloatArray:
        """The measured memory of each run, not a number where there is none."""
        return np.array([run.memory_bytes or np.nan for run in self.runs])

    def printed(self, coefficients: MemoryCoefficients) -> FloatArray:
        """Estimate what each run's source printed: the allocated peak of the rank that it looked at."""
        rows = (self.workload, self.layouts, self.framework, coefficients)
        stage = np.where(self.measured_on == "last", self.layouts.pp - 1.0, 0.0)
        is_fullest = self.measured_on == ""
        if is_fullest.any():
            stage = np.where(is_fullest, fullest_stage(*rows), stage)
        stage = np.where(np.isnan(self.probed_stage), stage, self.probed_stage)
        return estimate_memory(*rows, stage=stage).allocated_bytes


def usable(run: MeasuredRun) -> bool:
    """Tell whether a run says something of memory, states enough for an estimate, and is a fair comparison."""
    if run.memory_bytes is None and not run.out_of_memory:
        return False
    stated = run.model is not None and run.seq_len and run.layout.get("mbs") and not run.doubts
    return bool(stated) and run.model_name.partition("/")[0] not in LEFT_OUT


def layout_columns(run: MeasuredRun) -> dict[str, int | bool]:
    """Return the columns of a run's layout, what its source leaves out filled in as its framework would.

    The test suite of Megatron Core runs on nodes of eight; its long-term container of 2025 had no deterministic flash
    attention. Experts are split by tp where nothing else is said, and nanotron states its micro-batches.
    """
    columns = dict(run.layout)
    tp, split = columns.get("tp", 1), columns.get("tp", 1) * columns.get("pp", 1) * columns.get("cp", 1)
    columns.setdefault("dp", max((run.num_gpus or 8) // split, 1))
    columns.setdefault("gbs", columns["mbs"] * columns["dp"] * columns.get("pp", 1))
    if run.model is not None and run.model.num_experts and run.framework.startswith("megatron"):
        columns.setdefault("etp", tp)
    if steps := re.match(r"\d+", run.notes.get("GradAcc", "")):
        columns["gbs"] = int(steps[0]) * columns["mbs"] * columns["dp"]
    if _is_unfused(run):
        columns["flash_attention"] = False
    return columns


def _is_unfused(run: MeasuredRun) -> bool:
    """Tell whether a test of Megatron Core's suite ran without flash attention, which its rows do not say.

    Its BERT tests, and its deterministic tests but those that resume a run, ask for --attention-backend unfused.
    """
    if run.framework != "megatron-ci" or "deterministic" not in run.notes:
        return False
    notes = " ".join(run.notes)
    old = UNFUSED_CONTAINER.search(notes) and UNFUSED_UNTIL.search(notes)
    small = "mcore" in run.model_name and run.layout.get("cp", 1) == 1
    return small and (bool(old) or "resume" not in run.model_name or run.model_name.startswith("bert"))


def forbidden(run: MeasuredRun) -> str | None:
    """Return the rule of its framework that a run breaks whatever its memory, or None."""
    model = run.model
    if model is None or run.framework != "nanotron":
        return None
    at = layout_columns(run)
    pp, micro_batches = at.get("pp", 1), at["gbs"] // (at["mbs"] * at["dp"])
    cost = float(model.attention_params + model.dense_mlp_params)
    dealt = check_filled_stages(model.num_layers, layer_cost=cost, head_cost=float(model.embedding_params), pp=pp)
    return check_micro_batches(micro_batches, pp=pp) or dealt
