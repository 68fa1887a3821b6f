"""The layers of one pipeline stage.

Legend: L layers; p pipeline ranks of v chunks each; r the rank of a stage, from 0; c the cost of a layer and H that of
the output layer, in the same unit.
"""

from __future__ import annotations

import numpy as np

from zenith_tune.layouts.layout import FOLDED
from zenith_tune.layouts.layout_batch import BoolArray, FloatArray, LayoutBatch, Number
from zenith_tune.layouts.pipeline import ACCOUNTED
from zenith_tune.layouts.schedules import chunk_of

ROUNDING = 1e-9
"""Tolerance that keeps whole numbers of layers whole."""


def even_stage_layers(num_layers: Number, layouts: LayoutBatch, stage: FloatArray) -> FloatArray:
    """Return the layers of a stage of an even or uneven split: of chunks r, r+p, r+2p, ..., or folded r and 2p-1-r.

    Where a chunk would be empty, as in some measured runs, it is ceil(L/p).
    """
    pp = layouts.pp.astype(np.float64)
    chunks = pp * layouts.vp
    divides = _divides(chunks, num_layers)
    shared = np.where(divides, num_layers / pp, np.ceil(num_layers / pp))
    uneven = (pp > 1) & ~divides & (num_layers >= chunks)
    if not uneven.any():
        return shared
    dealt = np.where(uneven, _uneven_stage_layers(num_layers, pp, chunks, stage), shared)
    folded = uneven & layouts.schedule_is(FOLDED)
    if not folded.any():
        return dealt
    pairs = [chunk_of(layouts, stage, turn) for turn in (0, 1)]
    both = [
        layers_before_chunk(num_layers, layouts, at + 1.0) - layers_before_chunk(num_layers, layouts, at)
        for at in pairs
    ]
    return np.where(folded, both[0] + both[1], dealt)


def _divides(chunks: FloatArray, num_layers: Number) -> BoolArray:
    """Return where chunks are equal; several times as fast as the remainder of floats, and exact for counts."""
    size = num_layers / chunks
    result: BoolArray = size == np.floor(size)
    return result


def _uneven_stage_layers(num_layers: Number, pp: FloatArray, chunks: FloatArray, stage: FloatArray) -> FloatArray:
    """Return the layers of a stage where embedding and loss count as one each: floor((L+2)/(p*v)) or one more a chunk.

    The accounted split is the one without larger chunks.
    """
    inner, outer, extra, larger = _uneven_chunks(num_layers, chunks)
    # Chunks 1 to `larger` have one more; counted with chunk 0, which is taken off the first stage again.
    dealt = chunks / pp * inner + np.floor((larger + pp - stage) / pp)
    first = inner - outer + 1.0 - (extra - larger)
    result: FloatArray = dealt - (stage == 0) * first - (stage == pp - 1.0) * (inner - outer)
    return result


def _uneven_chunks(num_layers: Number, chunks: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return the layers of most chunks and of both ends, how many are left, and how many chunks take one of those."""
    inner = np.floor((num_layers + ACCOUNTED) / chunks)
    outer = np.maximum(inner - 1.0, 1.0)
    extra = num_layers - 2.0 * outer - (chunks - 2.0) * inner
    return inner, outer, extra, np.minimum(extra, chunks - 2.0)


def layers_before_chunk(num_layers: Number, layouts: LayoutBatch, chunk: FloatArray) -> FloatArray:
    """Return the layers before a chunk of an even or uneven split; all of them behind the last chunk."""
    pp = layouts.pp.astype(np.float64)
    chunks = pp * layouts.vp
    # Where a chunk would be empty, stages count as the fullest does.
    shared = np.where(num_layers < chunks, np.ceil(num_layers / pp) / layouts.vp, num_layers / chunks)
    inner, outer, extra, larger = _uneven_chunks(num_layers, chunks)
    first = outer + extra - larger
    laid_out = np.where(chunk > 0, first + (chunk - 1.0) * inner + np.minimum(chunk - 1.0, larger), 0.0)
    uneven = (pp > 1) & ~_divides(chunks, num_layers) & (num_layers >= chunks)
    return np.minimum(np.where(uneven, laid_out, chunk * shared), num_layers)


def layers_before_unit_chunk(num_layers: Number, layouts: LayoutBatch, chunk: FloatArray) -> FloatArray:
    """Return the layers before a chunk where embedding and output always count as a layer each, as in torchtitan.

    Of L+2 units the first chunks have one more where they do not go evenly (`generate_llm_fqn_per_model_part`).
    """
    chunks, units = layouts.pp * layouts.vp, num_layers + ACCOUNTED
    inner = np.floor(units / chunks)
    dealt = chunk * inner + np.minimum(chunk, units - inner * chunks) - 1.0
    return np.where(chunk > 0, np.minimum(dealt, num_layers), 0.0)


def cost_stage_layers(
    num_layers: Number, layer_cost: Number, head_cost: Number, pp: Number, stage: Number
) -> FloatArray:
    """Return the layers of a stage where blocks are distributed by cost, as nanotron's `build_model` does.

    Blocks are taken in order; a stage ends when the cost so far exceeds (L*c + H)*(r+1)/p, and keeps the block that
    exceeds it. Stages 0..r hold min(L, floor((L*c + H)*(r+1)/(p*c)) + 1) layers; late stages may hold none.
    """
    split = (num_layers, layer_cost, head_cost, pp)
    return _layers_upto(*split, stage) - layers_before_cost_stage(*split, stage)


def layers_before_cost_stage(
    num_layers: Number, layer_cost: Number, head_cost: Number, pp: Number, stage: Number
) -> FloatArray:
    """Return the layers before a stage where blocks are distributed by cost."""
    before = np.asarray(stage) - 1.0
    return np.where(before >= 0, _layers_upto(num_layers, layer_cost, head_cost, pp, before), 0.0)


def _layers_upto(num_layers: Number, layer_cost: Number, head_cost: Number, pp: Number, stage: Number) -> FloatArray:
    total = num_layers + head_cost / layer_cost
    stages = np.asarray(stage) + 1.0
    # A stage takes a layer even where the cost so far exceeds its share: r + 1 stages hold at least r + 1 layers.
    return np.minimum(num_layers, np.maximum(np.floor(total * stages / pp + ROUNDING) + 1.0, stages))
