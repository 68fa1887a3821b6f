from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.estimates.memory_cases import workload
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.estimates.calibration import MemoryCoefficients
from zenith_tune.estimates.memory import estimate_memory, fullest_stage
from zenith_tune.layouts.layout_batch import LayoutBatch


def deep_pipelines(num_layers: int) -> LayoutBatch:
    """Return layouts of many shapes whose chunks all have a layer."""
    shapes = [at for at in itertools.product((8, 12, 16, 32, 61, 64), (1, 2, 3, 4)) if at[0] * at[1] <= num_layers]
    choices = itertools.product(shapes, (1, 8), (1, 8, 64), (0, 1, 2, 3), (1, 4), (8, 512))
    rows = [(pp, vp, tp, ep, recompute, mbs, batch) for (pp, vp), tp, ep, recompute, mbs, batch in choices]
    pp, vp, tp, ep, recompute, mbs, batch = (np.array(column) for column in zip(*rows, strict=True))
    columns = {"pp": pp, "vp": vp, "tp": tp, "ep": ep, "recompute": recompute, "mbs": mbs, "gbs": 64 * mbs * batch}
    return LayoutBatch.of(**columns, dp=64, zero=1, recompute_layers=1, sequence_parallel=tp > 1)


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["megatron", "nanotron", "deepspeed"])
@pytest.mark.parametrize("model", ["llama3-70b", "llama3-405b", "deepseek-v3", "kimi-k2"])
def test_no_rank_of_a_deep_pipeline_needs_more_than_the_one_that_is_reported(model: str, framework: str) -> None:
    spec, c = load_framework(framework), MemoryCoefficients()
    at, layouts = workload(load_model(model), framework, 4096), deep_pipelines(load_model(model).num_layers)
    fullest = estimate_memory(at, layouts, spec, c).allocated_bytes
    for rank in range(64):
        stage = np.minimum(float(rank), layouts.pp - 1.0)
        needed = estimate_memory(at, layouts, spec, c, stage).allocated_bytes
        worst = (needed / fullest).argmax()
        assert needed[worst] <= fullest[worst] * (1 + 1e-9), (rank, layouts.take(np.array([worst])))


def test_many_sets_of_coefficients_have_a_row_each() -> None:
    spec, c = load_framework("megatron"), MemoryCoefficients()
    at, layouts = workload(load_model("llama3-405b"), "megatron", 4096), deep_pipelines(126)
    scales: Any = np.array([[0.2], [1.0], [5.0]])
    found = fullest_stage(at, layouts, spec, replace(c, activations=scales))
    alone = [fullest_stage(at, layouts, spec, replace(c, activations=float(scale))) for scale in scales[:, 0]]
    assert (found == np.stack(alone)).all()
    assert (found[0] != found[2]).any()
