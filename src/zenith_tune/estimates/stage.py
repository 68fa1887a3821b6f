"""One pipeline stage of each layout of a batch, with its numbers as floats for the formulas.

Legend: L layers of the stage, t tokens of a micro-batch on a rank (s*b/cp).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from zenith_tune.describe.framework_spec import FrameworkSpec, OwnPipeline
from zenith_tune.estimates.compute import tokens_per_rank
from zenith_tune.estimates.workload import FloatArray, Number, Workload
from zenith_tune.layouts.layout_batch import BoolArray, LayoutBatch
from zenith_tune.layouts.schedules import chunk_of, last_chunk_rank, micro_batches_in_flight
from zenith_tune.layouts.stages import (
    cost_stage_layers,
    even_stage_layers,
    layers_before_chunk,
    layers_before_cost_stage,
    layers_before_unit_chunk,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of each layout."""

    layouts: LayoutBatch
    is_first: FloatArray
    """1 where the stage has the embedding, else 0."""
    is_last: FloatArray
    """1 where the stage has the output layer and the loss, else 0."""
    dense_layers: FloatArray
    moe_layers: FloatArray
    mtp_layers: FloatArray
    """Layers for multi-token prediction, after the last one."""
    in_flight: FloatArray
    """Micro-batches whose activations the stage keeps."""
    tokens: FloatArray
    tp: FloatArray
    sequence_split: FloatArray
    """Ranks over which sequence parallelism splits tensors of hidden size."""
    padded_vocab: Number
    """One rank's share of the vocabulary, as the framework pads it."""

    @property
    def layers(self) -> FloatArray:
        return self.dense_layers + self.moe_layers

    @classmethod
    def of(cls, workload: Workload, layouts: LayoutBatch, framework: FrameworkSpec, rank: FloatArray) -> Self:
        """Return the stage of pipeline rank `rank` of each layout."""
        layers = stage_layers(workload, layouts, framework, rank)
        dense = _dense_layers(workload, layouts, framework, rank, layers)
        tp, is_last = layouts.tp.astype(np.float64), (rank == last_chunk_rank(layouts)).astype(np.float64)
        multiple = framework.vocab_multiple
        return cls(
            layouts=layouts,
            is_first=(rank == 0).astype(np.float64),
            is_last=is_last,
            dense_layers=dense,
            moe_layers=layers - dense,
            mtp_layers=(rank == _mtp_rank(layouts, framework)) * workload.num_mtp_layers,
            in_flight=micro_batches_in_flight(layouts, rank),
            tokens=tokens_per_rank(workload, layouts),
            tp=tp,
            sequence_split=np.where(layouts.sequence_parallel, tp, 1.0),
            padded_vocab=np.ceil(workload.vocab / (tp * multiple)) * multiple,
        )


def is_mixed(workload: Workload) -> bool:
    """Tell whether dense layers come before those with experts, in any of the models."""
    num_moe = np.asarray(workload.num_moe_layers)
    return bool(((num_moe > 0) & (num_moe < workload.num_layers)).any())


def first_moe_rank(workload: Workload, layouts: LayoutBatch, framework: FrameworkSpec) -> FloatArray:
    """Return the first pipeline rank whose first chunk has no dense layer; the last where there is none before."""
    w, last = workload, layouts.pp - 1.0
    num_dense = np.where(np.asarray(w.num_moe_layers) > 0, w.num_layers - w.num_moe_layers, 0.0)
    rank = np.zeros_like(last)
    # Every chunk has a layer, so that at most `num_dense` ranks have a dense layer in their first chunk.
    for other in range(int(min(num_dense.max(), last.max(initial=0.0)))):
        rank = rank + (_before(w, layouts, framework, np.full_like(last, other)) < num_dense)
    result: FloatArray = np.minimum(rank, last)
    return result


def stage_layers(workload: Workload, layouts: LayoutBatch, framework: FrameworkSpec, rank: FloatArray) -> FloatArray:
    """Return the layers of pipeline rank `rank` of each layout."""
    if framework.pipeline_split == "cost":
        return cost_stage_layers(*_cost_split(workload, layouts), rank)
    if framework.pipeline_split == "units":
        layers = np.zeros_like(rank)
        for turn in range(int(layouts.vp.max(initial=1))):
            start, end = (
                _before(workload, layouts, framework, chunk_of(layouts, rank, turn) + more) for more in (0.0, 1.0)
            )
            layers = layers + (turn < layouts.vp) * (end - start)
        return layers
    layers, own = even_stage_layers(workload.num_layers, layouts, rank), framework.own_pipeline
    if own is None:
        return layers
    written = np.array([own.on_rank(each) for each in range(own.num_ranks)], np.float64)
    return np.where(is_own(layouts, own), written[np.minimum(rank, own.num_ranks - 1).astype(np.intp)], layers)


def is_own(layouts: LayoutBatch, own: OwnPipeline) -> BoolArray:
    """Return which layouts have the pipeline that the job writes down."""
    result: BoolArray = (layouts.pp == own.num_ranks) & (layouts.pp * layouts.vp == len(own.layers))
    return result


def _mtp_rank(layouts: LayoutBatch, framework: FrameworkSpec) -> FloatArray:
    last, own = last_chunk_rank(layouts), framework.own_pipeline
    return last if own is None else np.where(is_own(layouts, own), own.mtp_rank, last)


def _dense_layers(
    w: Workload, layouts: LayoutBatch, framework: FrameworkSpec, rank: FloatArray, layers: FloatArray
) -> FloatArray:
    """Return the dense layers among those of a rank, which has chunks r, r+p, r+2p, ... of the model."""
    if not is_mixed(w):
        return np.where(np.asarray(w.num_moe_layers) > 0, 0.0, layers)
    num_dense = np.asarray(w.num_layers - w.num_moe_layers)
    found = np.zeros_like(layers)
    for turn in range(int(layouts.vp.max(initial=1))):
        chunk = chunk_of(layouts, rank, turn)
        start, end = (_before(w, layouts, framework, chunk + more) for more in (0.0, 1.0))
        found = found + (turn < layouts.vp) * np.clip(num_dense - start, 0.0, end - start)
        if turn and (start >= num_dense).all():
            break
    return np.where(np.asarray(w.num_moe_layers) > 0, found, layers)


def _before(w: Workload, layouts: LayoutBatch, framework: FrameworkSpec, chunk: FloatArray) -> FloatArray:
    """Return the layers before a chunk of the model; where blocks are distributed by cost, a rank has one chunk."""
    if framework.pipeline_split == "cost":
        return layers_before_cost_stage(*_cost_split(w, layouts), chunk)
    if framework.pipeline_split == "units":
        return layers_before_unit_chunk(w.num_layers, layouts, chunk)
    before, own = layers_before_chunk(w.num_layers, layouts, chunk), framework.own_pipeline
    if own is None:
        return before
    written = np.cumsum([0, *own.layers], dtype=np.float64)
    return np.where(is_own(layouts, own), written[np.minimum(chunk, len(own.layers)).astype(np.intp)], before)


def _cost_split(w: Workload, layouts: LayoutBatch) -> tuple[Number, Number, Number, FloatArray]:
    cost = w.attention_params + w.dense_mlp_params
    return w.num_layers, cost, w.embedding_params, layouts.pp.astype(np.float64)


def network_waits(layouts: LayoutBatch, framework: FrameworkSpec) -> BoolArray:
    """Return where every message between nodes waits: on many GPUs, and in pipelines with all-reduced gradients."""
    unsharded = (layouts.zero == 0) & (layouts.dp > 1) & (layouts.pp > 1)
    least_gpus = np.where(unsharded, framework.unsharded_waiting_gpus, framework.waiting_gpus)
    return layouts.num_gpus >= least_gpus


@dataclass(frozen=True, slots=True)
class StageLoads:
    """Layers of the fullest stage, and of the last one, which also has the logits."""

    fullest: FloatArray
    last: FloatArray
    """With those for multi-token prediction, where they are not on another stage."""


def stage_loads(workload: Workload, layouts: LayoutBatch, framework: FrameworkSpec) -> StageLoads:
    """Return the loads of every layout under the framework's pipeline split."""
    last, own = layouts.pp.astype(np.float64) - 1, framework.own_pipeline
    head, mtp = last_chunk_rank(layouts), _mtp_rank(layouts, framework)
    if own is not None:
        stages = [np.minimum(last, float(rank)) for rank in range(own.num_ranks)]
    elif framework.pipeline_split == "cost":
        stages = [np.zeros_like(last), np.minimum(last, 1.0)]
    else:
        # The second is the fullest, except that of two stages the first may have a layer more.
        stages = [np.where(last > 1, 1.0, 0.0)]
    layers = [stage_layers(workload, layouts, framework, stage) for stage in (*stages, head)]
    apart = [
        load + (mtp == stage) * (mtp != head) * workload.num_mtp_layers
        for load, stage in zip(layers, stages, strict=False)
    ]
    return StageLoads(np.maximum.reduce([*apart, layers[-1]]), layers[-1] + (mtp == head) * workload.num_mtp_layers)
