"""Cases that the tests of time share: one model on one cluster, and coefficients that switch off all but one cause."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy.typing as npt

from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.describe.framework_spec import FrameworkSpec, load_framework
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.estimates.calibration import TimeCoefficients
from zenith_tune.estimates.time import TimeEstimate, estimate_time
from zenith_tune.estimates.workload import Machine, Workload
from zenith_tune.layouts.layout_batch import LayoutBatch

GPT3 = replace(load_model("gpt3-175b"), vocab=51200, linear_bias=False)
"""GPT-3 as in the papers on Megatron-LM, whose equations leave biases out."""
IDEAL = TimeCoefficients(
    gemm_efficiency=1.0,
    attention_efficiency=1.0,
    memory_efficiency=1e12,
    hidden_passes=0.0,
    ffn_passes=0.0,
    logit_passes=0.0,
    layer_launch_s=0.0,
    tensor_launch_s=0.0,
    expert_launch_s=0.0,
    expert_passes=0.0,
    expert_efficiency=1.0,
    expert_narrowness=0.0,
    fast_efficiency=1.0,
    slow_efficiency=1.0,
    tensor_exposed=1.0,
    expert_exposed=1.0,
    network_wait_s=0.0,
    stage_wait_s=0.0,
    data_overlap=0.0,
    data_decay=0.0,
    optimizer_passes=0.0,
    step_overhead_s=0.0,
)
"""Every operation and every byte on a link at the peak rate, nothing hidden, nothing besides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The inputs of the time functions."""

    workload: Workload
    machine: Machine
    layouts: LayoutBatch
    framework: FrameworkSpec

    def time(self, coefficients: TimeCoefficients = IDEAL) -> TimeEstimate:
        """Estimate the step time."""
        return estimate_time(self.workload, self.machine, self.layouts, self.framework, coefficients)


def case(
    model: ModelSpec,
    cluster: str,
    *,
    seq_len: int = 2048,
    framework: str = "megatron",
    dispatcher: str = "alltoall",
    **layout: npt.ArrayLike,
) -> Case:
    """Return a case of one layout, or of many."""
    spec = load_framework(framework)
    return Case(
        workload=Workload.of(model, JobSpec(seq_len=seq_len, framework=spec, dispatcher=dispatcher)),
        machine=Machine.of(load_cluster(cluster), "bf16"),
        layouts=LayoutBatch.of(**layout),
        framework=spec,
    )
