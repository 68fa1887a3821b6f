"""One pipeline stage of each layout of a batch, with its numbers as floats for the formulas.

Legend: L layers of the stage, t tokens of a micro-batch on a rank (s*b/cp).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from zenith_tune.describe.framework_spec import FrameworkSpec
from zenith_tune.estimate.estimate import FloatArray
from zenith_tune.estimate.workload import Number, Workload
from zenith_tune.layouts.layout_batch import LayoutBatch
from zenith_tune.layouts.stages import cost_stage_layers, even_stage_layers, micro_batches_in_flight


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Hold one stage of each layout."""

    layouts: LayoutBatch
    is_first: FloatArray
    """1 where the stage holds the embedding, else 0."""
    is_last: FloatArray
    """1 where the stage holds the output layer and the loss, else 0."""
    dense_layers: FloatArray
    moe_layers: FloatArray
    in_flight: FloatArray
    """Micro-batches whose activations wait on the stage."""
    tokens: FloatArray
    tp: FloatArray
    sequence_split: FloatArray
    """By what sequence parallelism cuts the tensors of hidden size."""
    padded_vocab: Number
    """One rank's share of the vocabulary, as the framework pads it."""

    @property
    def layers(self) -> FloatArray:
        """Layers of the stage, of either kind."""
        return self.dense_layers + self.moe_layers

    @classmethod
    def of(cls, workload: Workload, layouts: LayoutBatch, framework: FrameworkSpec, rank: FloatArray) -> Self:
        """Take the stage of pipeline rank `rank` of each layout."""
        layers, before = _layers(workload, layouts, framework, rank)
        dense_ahead = workload.num_layers - workload.num_moe_layers
        dense = np.clip(dense_ahead - before, 0.0, layers)
        tp = layouts.tp.astype(np.float64)
        multiple = framework.vocab_multiple
        return cls(
            layouts=layouts,
            is_first=(rank == 0).astype(np.float64),
            is_last=(rank == layouts.pp - 1).astype(np.float64),
            dense_layers=dense,
            moe_layers=layers - dense,
            in_flight=micro_batches_in_flight(layouts, rank),
            tokens=workload.seq_len * layouts.mbs / layouts.cp,
            tp=tp,
            sequence_split=np.where(layouts.sequence_parallel, tp, 1.0),
            padded_vocab=np.ceil(workload.vocab / (tp * multiple)) * multiple,
        )


def _layers(
    workload: Workload, layouts: LayoutBatch, framework: FrameworkSpec, rank: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the layers of a stage and those before it; with interleaving, those before its first chunk."""
    if framework.pipeline_split == "cost":
        layer_cost = workload.attention_params + workload.dense_mlp_params
        upto = (workload.num_layers, layer_cost, workload.embedding_params, layouts.pp.astype(np.float64))
        layers = cost_stage_layers(*upto, rank)
    else:
        layers = even_stage_layers(workload.num_layers, layouts, rank)
    return layers, rank * layers / layouts.vp
