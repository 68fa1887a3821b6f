"""Layouts with their models and machines that the tests of emission share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.layouts.specs import LLAMA_70B, job
from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.layouts.layout import Layout
from zenith_tune.presets.emission import Target


def target(
    *,
    model: ModelSpec = LLAMA_70B,
    cluster: str = "h100x64",
    framework: str = "megatron",
    precision: str = "bf16",
    dispatcher: str = "alltoall",
    **sizes: Any,
) -> Target:
    machines = load_cluster(cluster)
    sizes = {"micro_batch": 1, "global_batch": 512} | sizes
    layout = Layout(num_gpus=machines.num_gpus, **sizes)
    asked = replace(job(framework), precision=precision, dispatcher=dispatcher)
    return Target(layout=layout, model=model, cluster=machines, job=asked)
