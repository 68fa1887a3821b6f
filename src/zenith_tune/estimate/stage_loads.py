"""How many layers the stages of a pipeline have to work through."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zenith_tune.describe.framework_spec import FrameworkSpec
from zenith_tune.estimate.estimate import FloatArray
from zenith_tune.estimate.workload import Workload
from zenith_tune.layouts.layout_batch import LayoutBatch
from zenith_tune.layouts.stages import cost_stage_layers, even_stage_layers


@dataclass(frozen=True, slots=True)
class StageLoads:
    """Hold the layers of the fullest stage and of the last one, which has the logits too."""

    fullest: FloatArray
    last: FloatArray


def stage_loads(workload: Workload, layouts: LayoutBatch, framework: FrameworkSpec) -> StageLoads:
    """Return the loads of every layout under the framework's way of cutting a model."""
    w, pp = workload, layouts.pp.astype(np.float64)
    last = pp - 1
    if framework.pipeline_split == "cost":
        cost, head = w.attention_params + w.dense_mlp_params, w.embedding_params
        stages = [np.zeros_like(pp), np.minimum(last, 1.0), last]
        layers = [cost_stage_layers(w.num_layers, cost, head, pp, stage) for stage in stages]
    else:
        # The second is the fullest but where it is the last: of two stages the first may have a layer more.
        stages = [np.where(pp > 2, 1.0, 0.0), last]
        layers = [even_stage_layers(w.num_layers, layouts, stage) for stage in stages]
    return StageLoads(np.maximum.reduce(layers), layers[-1])
