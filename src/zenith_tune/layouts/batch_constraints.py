"""The rules of `layout_rules` over many layouts at once: one mask per rule, true where it holds.

The dense world has none: the columns of a batch multiply to its ranks by definition.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.layouts.layout_batch import (
    RECOMPUTE_NAMES,
    RECOMPUTE_UNIFORM,
    BoolArray,
    LayoutBatch,
)
from zenith_tune.layouts.pipeline import accounted_splits, chunk_layers, even_splits, laid_out_splits
from zenith_tune.layouts.search_space import SIZES, limits_of

Holds = Callable[[ModelSpec, JobSpec, LayoutBatch], BoolArray]


def _expert_world(model: ModelSpec, job: JobSpec, at: LayoutBatch) -> BoolArray:
    return _mask(at.num_gpus % (at.etp * at.ep * at.pp) == 0)


def _batch(model: ModelSpec, job: JobSpec, at: LayoutBatch) -> BoolArray:
    return _mask(at.gbs % (at.dp * at.mbs) == 0)


def _heads(model: ModelSpec, job: JobSpec, at: LayoutBatch) -> BoolArray:
    return _mask(model.num_heads % at.tp == 0)


def _query_groups(model: ModelSpec, job: JobSpec, at: LayoutBatch) -> BoolArray:
    return _mask((model.num_kv_heads % at.tp == 0) | (at.tp % model.num_kv_heads == 0))


def _ffn(model: ModelSpec, job: JobSpec, at: LayoutBatch) -> BoolArray:
    if model.num_moe_layers == model.num_layers:
        return _all(at)
    return _mask(model.ffn_hidden % at.tp == 0)


def _pipeline(model: ModelSpec, job: JobSpec, at: LayoutBatch) -> BoolArray:
    whole = even_splits(model.num_layers, at.pp, at.vp) | accounted_splits(model.num_layers, at.pp, at.vp)
    if not limits_of(job.framework.name).layout_strings:
        return whole
    return _mask(whole | laid_out_splits(model.num_layers, at.pp, at.vp))


def _interleaving(model: ModelSpec, job: JobSpec, at: LayoutBatch) -> BoolArray:
    return _mask((at.vp == 1) | (at.pp > 1))


def _interleaved_batches(model: ModelSpec, job: JobSpec, at: LayoutBatch) -> BoolArray:
    return _mask((at.vp == 1) | (at.num_micro_batches % at.pp == 0))


def _context(model: ModelSpec, job: JobSpec, at: LayoutBatch) -> BoolArray:
    return _mask((at.cp == 1) | (job.seq_len % (2 * at.cp) == 0))


def _sequence_parallel(model: ModelSpec, job: JobSpec, at: LayoutBatch) -> BoolArray:
    return _mask(~at.sequence_parallel | (at.tp > 1))


def _sequence_chunks(model: ModelSpec, job: JobSpec, at: LayoutBatch) -> BoolArray:
    return _mask(~at.sequence_parallel | (job.seq_len % (at.cp * at.tp) == 0))


def _experts(model: ModelSpec, job: JobSpec, at: LayoutBatch) -> BoolArray:
    return _mask(model.num_experts % at.ep == 0 if model.num_experts else at.ep == 1)


def _expert_tensor(model: ModelSpec, job: JobSpec, at: LayoutBatch) -> BoolArray:
    return _mask(model.moe_ffn_hidden % at.etp == 0 if model.num_experts else at.etp == 1)


def _expert_bias(model: ModelSpec, job: JobSpec, at: LayoutBatch) -> BoolArray:
    return _mask((at.etp == 1) | (not (model.num_experts and model.linear_bias)))


def _expert_sequence(model: ModelSpec, job: JobSpec, at: LayoutBatch) -> BoolArray:
    return _mask((at.tp == 1) | at.sequence_parallel | (not model.num_experts))


def _recompute_takes(model: ModelSpec, job: JobSpec, at: LayoutBatch) -> BoolArray:
    return _mask((at.recompute >= RECOMPUTE_UNIFORM) | (at.recompute_layers == 0))


def _recompute_chunk(model: ModelSpec, job: JobSpec, at: LayoutBatch) -> BoolArray:
    inside = (at.recompute_layers >= 1) & (at.recompute_layers <= chunk_layers(model.num_layers, at.pp, at.vp))
    return _mask((at.recompute < RECOMPUTE_UNIFORM) | inside)


def _zero_pipeline(model: ModelSpec, job: JobSpec, at: LayoutBatch) -> BoolArray:
    return _mask((at.zero < 2) | (at.pp == 1))


def _zero_stage(model: ModelSpec, job: JobSpec, at: LayoutBatch) -> BoolArray:
    return np.isin(at.zero, limits_of(job.framework.name).zero_stages)


def _framework(model: ModelSpec, job: JobSpec, at: LayoutBatch) -> BoolArray:
    limits = limits_of(job.framework.name)
    mask: BoolArray = np.isin(at.recompute, [RECOMPUTE_NAMES.index(name) for name in limits.recompute])
    for name in SIZES:
        if name not in limits.sizes:
            mask = mask & (getattr(at, name) == 1)
    return mask


def _mask(holds: object) -> BoolArray:
    return np.asarray(holds, np.bool_)


def _all(at: LayoutBatch) -> BoolArray:
    return np.ones(len(at), np.bool_)


BATCH_RULES: dict[str, Holds] = {
    "expert_world": _expert_world,
    "batch": _batch,
    "heads": _heads,
    "query_groups": _query_groups,
    "ffn": _ffn,
    "pipeline": _pipeline,
    "interleaving": _interleaving,
    "interleaved_batches": _interleaved_batches,
    "context": _context,
    "sequence_parallel": _sequence_parallel,
    "sequence_chunks": _sequence_chunks,
    "experts": _experts,
    "expert_tensor": _expert_tensor,
    "expert_bias": _expert_bias,
    "expert_sequence": _expert_sequence,
    "recompute_takes": _recompute_takes,
    "recompute_chunk": _recompute_chunk,
    "zero_pipeline": _zero_pipeline,
    "zero_stage": _zero_stage,
    "framework": _framework,
}
"""By the name of the rule in `layout_rules.RULES`, where its law is."""


def legal(model: ModelSpec, job: JobSpec, layouts: LayoutBatch) -> BoolArray:
    """Tell which layouts hold every rule."""
    mask = _all(layouts)
    for holds in BATCH_RULES.values():
        mask &= holds(model, job, layouts)
    return mask
