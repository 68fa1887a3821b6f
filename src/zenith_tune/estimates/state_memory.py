"""Memory that a rank keeps between steps (weights, gradients, optimizer states), and that the optimizer's step adds.

Mixed precision keeps 2 + 4 + 12 bytes per parameter (weights, fp32 gradients, fp32 master copy and two moments); ZeRO
shards the optimizer over the data-parallel ranks at stage 1, gradients at 2, weights at 3 (Rajbhandari et al. 2020,
arXiv 1910.02054, figure 1). Megatron's distributed optimizer is stage 1 over dp*cp, and over edp for experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zenith_tune.describe.framework_spec import FrameworkSpec
from zenith_tune.estimates.stage import Stage
from zenith_tune.estimates.workload import FloatArray, Workload

HALF = 2.0
AHEAD = 2.0
"""Layers gathered at once: the one that computes and the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageParams:
    """Parameters of a rank of a stage, before sharding over data-parallel ranks."""

    matrices: FloatArray
    """Parameters of the layers without experts: attention, feed-forward parts, router and norms."""
    experts: FloatArray
    embedding: FloatArray
    """Parameters of embedding and positions; a tied embedding is counted in `head` where the stage has both."""
    head: FloatArray

    @property
    def dense(self) -> FloatArray:
        return self.matrices + self.embedding + self.head


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMemory:
    """State bytes per rank of a stage."""

    weights: FloatArray
    gradients: FloatArray
    optimizer: FloatArray
    step: FloatArray
    """Temporary bytes of the optimizer's step."""
    buckets: FloatArray
    """Bytes of buckets in which unsharded gradients are reduced."""
    layer_casts: FloatArray
    """Bytes of half-precision copies of the layers' matrices that autocast makes."""
    head_casts: FloatArray


def stage_params(workload: Workload, stage: Stage) -> StageParams:
    """Count the parameters on one rank of a stage."""
    w, layouts, tp = workload, stage.layouts, stage.tp
    has_experts = np.asarray(w.num_moe_layers) > 0
    dense_layers = stage.dense_layers + np.where(has_experts, 0.0, stage.mtp_layers)
    moe_layers = stage.moe_layers + np.where(has_experts, stage.mtp_layers, 0.0)
    whole = 2.0 * w.norm_params + w.whole_attention_params
    attention = w.attention_params - w.whole_attention_params
    dense = dense_layers * ((attention + w.dense_mlp_params) / tp + whole)
    moe = moe_layers * ((attention + w.shared_params) / tp + whole + w.num_experts * w.hidden)
    return StageParams(
        matrices=dense + moe + stage.is_last * w.norm_params + _joins(w, stage),
        experts=moe_layers * (w.num_experts * w.expert_params / (layouts.ep * layouts.etp)),
        embedding=_embedding(w, stage),
        head=stage.is_last * (stage.padded_vocab * w.hidden),
    )


def _embedding(w: Workload, stage: Stage) -> FloatArray:
    """Return the embedding's parameters; a stage with multi-token prediction has a copy (`mtp_process`)."""
    here = np.maximum(stage.is_first, stage.mtp_layers > 0)
    # A table that is also the output layer is counted there.
    table = stage.padded_vocab * w.hidden * (1.0 - stage.is_last * w.tied)
    return here * (table + w.position_params)


def _joins(w: Workload, stage: Stage) -> FloatArray:
    """Return the parameters that join a hidden state and the next token's embedding: 2h by h, and three norms.

    MultiTokenPredictionLayer of Megatron Core: eh_proj; enorm, hnorm and final_layernorm.
    """
    return stage.mtp_layers * (2.0 * w.hidden**2 / stage.tp + 3.0 * w.norm_params)


def state_memory(workload: Workload, stage: Stage, framework: FrameworkSpec) -> StateMemory:
    """Return the state of a rank of a stage by kind."""
    f, params, layouts = framework, stage_params(workload, stage), stage.layouts
    dense, experts, trained = params.dense, params.experts, workload.trained_share
    shard, expert_shard = layouts.dp * layouts.cp, np.maximum(layouts.edp, 1)
    whole = dense + experts
    sharded = dense / shard + experts / expert_shard
    updated = np.where(layouts.zero >= 1, sharded, whole)
    gathered = f.weight_bytes * sharded + _gathered(stage, params)
    # Adapters that are switched off leave the model that they adapt: it needs no copy as its own reference.
    copied = HALF * workload.reference * (np.asarray(trained) == 1.0)
    weights = np.where(layouts.zero >= 3, gathered, f.weight_bytes * whole + _cached(workload, stage, f, params))
    return StateMemory(
        weights=weights + copied * np.where(layouts.zero >= 3, sharded, whole),
        gradients=trained * f.gradient_bytes * np.where(layouts.zero >= 2, sharded, whole),
        optimizer=trained * f.optimizer_bytes * updated,
        step=trained * (f.step_bytes * updated + np.where(layouts.zero >= 1, f.sync_bytes * whole, 0.0)),
        buckets=np.where((layouts.zero == 0) & (shard > 1), trained * f.bucket_bytes * whole, 0.0),
        layer_casts=f.cast_bytes * (params.matrices + experts),
        head_casts=f.cast_bytes * params.head,
    )


def _cached(w: Workload, stage: Stage, f: FrameworkSpec, params: StageParams) -> FloatArray | float:
    """Return the bytes of quantised copies of the weights, which a sharded optimizer may not need."""
    if not np.any(w.narrow):
        return 0.0
    share = w.narrow * (1.0 - w.gathers_fp8 * (stage.layouts.zero >= 1))
    return f.narrow_weight_bytes * share * (params.matrices + params.experts)


def _gathered(stage: Stage, params: StageParams) -> FloatArray:
    """Return the bytes of gathered weights: the current layer, the next one, and the two tables.

    torch.distributed.fsdp gathers in half precision, one layer ahead, and leaves its root unit gathered.
    """
    layers = (params.matrices + params.experts) / np.maximum(stage.layers, 1.0)
    return HALF * (AHEAD * layers + params.embedding + params.head)
