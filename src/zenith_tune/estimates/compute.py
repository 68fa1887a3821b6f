"""The compute time of one layer and one micro-batch on one rank, forward and backward.

Legend: t tokens of a micro-batch on one context-parallel rank, s sequence length, h hidden size.

A matrix product of f operations takes f / (peak * efficiency) (Williams et al., "Roofline", CACM 52 (2009)); its
backward pass takes two of them, or one where the weights are frozen. Reading weights and adding up gradients, whatever
the batch, is counted in bytes: this is why small micro-batches and thin shards are slow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zenith_tune.estimates.calibration import TimeCoefficients
from zenith_tune.estimates.routing import busiest_rank
from zenith_tune.estimates.workload import FloatArray, Machine, Number, Workload
from zenith_tune.layouts.layout_batch import LayoutBatch

READ_TRAFFIC, GRADIENT_TRAFFIC = 4.0, 10.0
"""Bytes per weight and micro-batch: two reads in bf16; if it is trained, a third and an fp32 gradient added up."""


def flops_per_weight(workload: Workload) -> Number:
    """Return the operations of a token and weight, forward and backward."""
    return 4.0 + 2.0 * workload.trained_share


def weight_traffic(workload: Workload) -> Number:
    """Return the bytes moved per weight and micro-batch, whatever the size of the latter."""
    return READ_TRAFFIC + GRADIENT_TRAFFIC * workload.trained_share


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Seconds of one dense layer and of one with experts, forward and backward."""

    dense_s: FloatArray
    expert_s: FloatArray
    """Seconds of a layer with experts; equal to dense_s in a model without."""
    attention_s: FloatArray
    """Seconds of the attention kernel in either."""


def tokens_per_rank(workload: Workload, layouts: LayoutBatch) -> FloatArray:
    """Return t, the tokens of one micro-batch that a rank sees."""
    return layouts.mbs * (workload.seq_len / layouts.cp)


def layer_time(workload: Workload, machine: Machine, layouts: LayoutBatch, coefficients: TimeCoefficients) -> LayerTime:
    """Return the compute time of one layer per micro-batch."""
    w, c = workload, coefficients
    tokens, tp = tokens_per_rank(w, layouts), layouts.tp.astype(np.float64)
    flops = machine.matrix_flops * c.gemm_efficiency
    memory = machine.memory_bytes_per_s * c.memory_efficiency
    attention = attention_time(w, machine, layouts, c)
    # Norms and residuals are split over the tensor-parallel ranks only with sequence parallelism.
    rows = tokens / np.where(layouts.sequence_parallel, tp, 1.0)
    per_weight = flops_per_weight(w) * tokens / flops + weight_traffic(w) / memory
    shared = w.attention_params * per_weight / tp + attention
    shared = shared + rows * w.hidden * c.hidden_passes / memory
    shared = shared + tokens * (w.query_size + w.kv_size / 2) * c.query_passes / memory / tp
    width = c.ffn_passes / memory
    dense = w.dense_mlp_params * per_weight / tp + tokens * w.ffn_hidden * width / tp
    if np.any(w.cast_bytes):
        cast = w.cast_bytes / memory
        shared = shared + cast * (2 * rows * w.hidden + tokens * (w.query_size + w.kv_size + w.value_size) / tp)
        dense = dense + cast * (2 * rows * w.hidden + (2 + w.gated) * tokens * w.ffn_hidden / tp)
    return LayerTime(shared + dense, shared + _expert_time(w, layouts, tokens, flops, memory, c), attention)


def attention_time(
    workload: Workload, machine: Machine, layouts: LayoutBatch, coefficients: TimeCoefficients
) -> FloatArray:
    """Return the time of scores and their product with the values, forward and backward, under a causal mask."""
    w, tokens = workload, tokens_per_rank(workload, layouts)
    flops = 3 * tokens * w.seq_len * (w.query_size + w.value_size) / layouts.tp
    kernel = flops / (machine.attention_flops * coefficients.attention_efficiency)
    scores = tokens * w.seq_len * w.num_heads / layouts.tp * coefficients.score_passes
    unfused = scores / (machine.memory_bytes_per_s * coefficients.memory_efficiency)
    return np.where(layouts.flash_attention, kernel, kernel + unfused)


def _expert_time(
    workload: Workload,
    layouts: LayoutBatch,
    tokens: FloatArray,
    flops: FloatArray | float,
    memory: FloatArray | float,
    c: TimeCoefficients,
) -> FloatArray:
    """Return the time of the routed and shared experts on the busiest rank, which the others wait for."""
    w, tp = workload, layouts.tp.astype(np.float64)
    busiest, _ = busiest_rank(w, layouts)
    routed = w.top_k * tokens / tp * busiest
    local = w.num_experts * w.expert_params / (layouts.ep * layouts.etp)
    narrow = 1 + c.expert_narrowness * layouts.etp / np.maximum(w.moe_ffn_hidden, 1.0)
    # The product of one expert overlaps with reading the weights of the next.
    product = flops_per_weight(w) * routed * w.expert_params * narrow / (flops * c.expert_efficiency)
    work = np.hypot(product, local * weight_traffic(w) / memory)
    moved = routed * (w.moe_ffn_hidden * c.ffn_passes + w.hidden * c.expert_passes) / memory
    if np.any(w.cast_bytes):
        moved = moved + routed * w.cast_bytes * (2 * w.hidden + (2 + w.gated) * w.moe_ffn_hidden) / memory
    shared = w.shared_params * (flops_per_weight(w) * tokens / flops + weight_traffic(w) / memory) / tp
    return work + moved + shared + tokens * w.shared_ffn_hidden * c.ffn_passes / memory / tp


def head_time(workload: Workload, machine: Machine, layouts: LayoutBatch, coefficients: TimeCoefficients) -> FloatArray:
    """Return the time of the logits and the loss per micro-batch, also of multi-token prediction."""
    w, c = workload, coefficients
    tokens = tokens_per_rank(w, layouts) * (1 + w.num_mtp_layers)
    memory = machine.memory_bytes_per_s * c.memory_efficiency
    product = w.embedding_params * (
        flops_per_weight(w) * tokens / (machine.attention_flops * c.gemm_efficiency) + weight_traffic(w) / memory
    )
    return (product + tokens * w.vocab * c.logit_passes / memory) / layouts.tp
