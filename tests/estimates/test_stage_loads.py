from __future__ import annotations

import numpy as np
import pytest

from tests.layouts.specs import DEEPSEEK_V3, LLAMA_70B, LLAMA_405B, job
from zenith_tune.describe.framework_spec import FrameworkSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.estimates.stage import stage_loads
from zenith_tune.estimates.workload import Workload
from zenith_tune.layouts.layout_batch import LayoutBatch
from zenith_tune.layouts.stages import even_stage_layers


@pytest.mark.parametrize("model", [DEEPSEEK_V3, LLAMA_70B, LLAMA_405B], ids=lambda model: model.name)
def test_no_stage_is_fuller_than_the_fullest(model: ModelSpec) -> None:
    workload, framework = Workload.of(model, job()), FrameworkSpec(name="megatron")
    for pp, vp in [(pp, vp) for pp in range(1, 65) for vp in range(1, 9) if pp * vp <= model.num_layers]:
        loads = stage_loads(workload, LayoutBatch.of(pp=[pp], vp=vp), framework)
        stages = even_stage_layers(workload.num_layers, LayoutBatch.of(pp=[pp] * pp, vp=vp), np.arange(float(pp)))
        assert (loads.fullest[0], loads.last[0]) == (stages.max(), stages[-1] + model.num_mtp_layers), (pp, vp)


def test_of_two_stages_the_first_has_the_odd_layer() -> None:
    loads = stage_loads(Workload.of(DEEPSEEK_V3, job()), LayoutBatch.of(pp=[2]), FrameworkSpec(name="megatron"))
    assert (loads.fullest.tolist(), loads.last.tolist()) == (
        [31],
        [30 + 1],
    )  # with the layer for multi-token prediction
