"""Activations that layers and the loss keep of the forward pass, and what a layer's backward pass needs.

Korthikanti et al. 2022 (arXiv 2205.05198) count 34*s*b*h + 5*a*s^2*b bytes for a GPT layer without parallelism
(equation 1), s*b*h*(10 + 24/t + 5as/(ht)) with tensor parallelism (2), everything over t with sequence parallelism (4),
and no score terms with selective recomputation (6). Here activations are counted width by width, which extends this to
grouped queries, gated feed-forward parts, experts and other frameworks: FrameworkSpec.saved has the bytes per width.

The output layer and the loss need logits, their copies in fp32, and the gradient of both.
Megatron's vocab-parallel cross entropy (tensor_parallel/cross_entropy.py) keeps the half-precision logits and one fp32
copy that becomes softmax and gradient in place: 6 bytes per logit, forward and backward. torch's cross entropy has
three fp32 tensors in the backward pass (log-softmax, its gradient, that of the logits): 12 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zenith_tune.describe.framework_spec import FrameworkSpec, LayerBytes
from zenith_tune.estimates.calibration import MemoryCoefficients
from zenith_tune.estimates.routing import busiest_rank
from zenith_tune.estimates.stage import Stage, network_waits
from zenith_tune.estimates.state_memory import StateMemory
from zenith_tune.estimates.workload import FloatArray, Number, Workload
from zenith_tune.layouts.layout_batch import RECOMPUTE_BLOCK, RECOMPUTE_SELECTIVE, RECOMPUTE_UNIFORM

HALF = 2.0
JOINED_BYTES = 8.0
"""Bytes per hidden unit of two half-precision tensors before both norms of multi-token prediction, and two after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationMemory:
    """Activation bytes per rank of a stage."""

    saved: FloatArray
    """Bytes kept for the backward passes of all micro-batches in flight."""
    attention_peak: FloatArray
    """Net bytes added at the attention of the first layer in the backward pass."""
    mlp_peak: FloatArray
    """Net bytes added at its feed-forward part."""
    one_layer: FloatArray
    """Bytes of the last layer in the backward pass, with its own activations alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    attention: FloatArray
    """Bytes of attention outside its core."""
    core: FloatArray
    """Bytes of the core of attention, such as scores, which selective recomputation drops."""
    core_inputs: FloatArray
    """Bytes that selective recomputation keeps instead of the core."""
    mlp: FloatArray


def activation_memory(workload: Workload, stage: Stage, framework: FrameworkSpec) -> ActivationMemory:
    """Return the activations of a stage at each moment."""
    f, layouts = framework, stage.layouts
    recomputed, chunk = _recomputed(stage)
    busiest = _busiest(workload, stage, recomputed, chunk)[0]
    kept = _seen(workload, stage, _layer(workload, stage, f, f.saved, busiest))
    work = _layer(workload, stage, f, f.working, busiest)
    selective = layouts.recompute == RECOMPUTE_SELECTIVE
    whole = kept.attention + kept.core + kept.mlp
    if f.selective_share:
        selected, returned = f.selective_share * whole, (1.0 - f.selective_share) * whole
    else:
        selected, returned = kept.attention + kept.core_inputs + kept.mlp, kept.core
    layer = np.where(selective, selected, whole)
    checkpoint = f.checkpoint_bytes * workload.hidden * stage.tokens / stage.sequence_split
    tables = _table(workload, stage, f)
    saved = (stage.layers - recomputed) * (stage.in_flight * layer + tables)
    uniform = np.where(layouts.recompute == RECOMPUTE_UNIFORM, np.maximum(layouts.recompute_layers, 1), 1)
    saved += np.ceil(recomputed / uniform) * stage.in_flight * checkpoint
    split = f.boundary_bytes * workload.hidden * stage.tokens / stage.sequence_split * stage.in_flight
    saved += (
        np.where(layouts.pp > 1, split, 0.0)
        + _lingering(workload, stage, f)
        + stage.is_first * workload.saved_other_bytes * stage.tokens
    )
    saved += stage.mtp_layers * (np.where(recomputed > 0, checkpoint, layer + tables) + _joined(workload, stage))
    again = chunk * (whole + tables) - np.minimum(chunk, 1.0) * checkpoint
    return ActivationMemory(
        saved=saved,
        attention_peak=again + selective * returned - kept.mlp + work.attention + work.core,
        mlp_peak=again + work.mlp,
        one_layer=whole + np.maximum(work.mlp, work.attention + work.core - kept.mlp),
    )


def _layer(w: Workload, stage: Stage, f: FrameworkSpec, per: LayerBytes, busiest: Number) -> _Layer:
    """Return the bytes of one layer at `per` bytes per width."""
    flash = stage.layouts.flash_attention
    per_rank = stage.tokens / stage.tp
    less: Number = w.narrow * f.narrow_input_bytes if per is f.saved else 0.0
    hidden = ((per.attention_hidden - less) / stage.sequence_split + per.whole) * w.hidden * stage.tokens
    scores = np.where(flash, per.heads * w.num_heads, per.scores * w.num_heads * w.seq_len) * per_rank
    inputs = (per.query * w.query_size + per.key_value * w.kv_size) * per_rank
    if f.expands_key_values and per is f.saved:
        inputs, expanded = _unfused_inputs(w, per_rank)
    else:
        expanded = inputs
    normed = per.qk_norm * w.qk_norm * (w.query_size + w.kv_size / 2.0)
    attention = hidden + ((per.value - less) * w.value_size + normed) * per_rank
    mlp = _mlp(w, stage, per, busiest, less)
    return _Layer(attention=attention, core=expanded + scores, core_inputs=inputs, mlp=mlp)


def _seen(w: Workload, stage: Stage, layer: _Layer) -> _Layer:
    """Return a layer with its traced bytes, where there are any, in place of those by widths."""
    seen = np.asarray(w.saved_layer_bytes * stage.tokens)
    by_widths = seen == 0
    return _Layer(
        attention=layer.attention * by_widths,
        core=layer.core * by_widths,
        core_inputs=layer.core_inputs * by_widths,
        mlp=np.where(by_widths, layer.mlp, seen),
    )


def _unfused_inputs(w: Workload, per_rank: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the bytes of the inputs of unfused attention, and of what it expands them to.

    Rotated queries and keys are new tensors, values a view of the projection of all three, which is kept. With grouped
    queries, keys and values are then repeated for every query head, and the projection is freed.
    """
    rotary = np.asarray(w.position_params) == 0
    given = HALF * (w.query_size + w.kv_size + rotary * (w.query_size + w.kv_size / 2.0))
    repeated = HALF * (w.query_size + w.query_size + w.value_size)
    grouped = np.asarray(w.kv_size) < w.query_size + w.value_size
    return given * per_rank, np.where(grouped, repeated, given) * per_rank


def _mlp(w: Workload, stage: Stage, per: LayerBytes, busiest: Number, less: Number) -> FloatArray:
    """Return the bytes of a feed-forward part, averaged over the stage's dense layers and those with experts.

    `less` is the bytes per unit saved on inputs of products; a router reads the full output of the norm.
    """
    layouts = stage.layouts
    ffn = per.ffn_gated * w.gated + per.ffn_plain * (1.0 - w.gated) - less
    hidden = per.mlp_hidden * w.hidden / stage.sequence_split
    dense: Number = ffn * w.ffn_hidden / stage.tp - less * w.hidden / stage.sequence_split
    if not np.any(w.num_moe_layers):
        return (hidden + dense) * stage.tokens
    routed = (per.expert_hidden - less) * w.hidden * layouts.etp + ffn * w.moe_ffn_hidden
    experts = (w.top_k * busiest * routed + per.router * w.num_experts) / stage.sequence_split
    experts = experts + ffn * w.shared_ffn_hidden / stage.tp
    share = stage.moe_layers / np.maximum(stage.layers, 1.0)
    return (hidden + (1.0 - share) * dense + share * experts) * stage.tokens


def _busiest(
    w: Workload, stage: Stage, recomputed: FloatArray, chunk: FloatArray
) -> tuple[Number, Number, FloatArray | float]:
    """Return the busiest rank's load over the mean, its spread, and the number of layers with experts kept at once."""
    if not np.any(w.imbalance):
        return 1.0, 0.0, 1.0
    share = stage.moe_layers / np.maximum(stage.layers, 1.0)
    layers = np.maximum((stage.layers - recomputed + chunk) * share, 1.0)
    return *busiest_rank(w, stage.layouts, layers), layers


def routed_spread(w: Workload, stage: Stage, f: FrameworkSpec) -> FloatArray:
    """Return the standard deviation of the busiest rank's bytes of routed tokens."""
    _, spread, layers = _busiest(w, stage, *_recomputed(stage))
    ffn = f.saved.ffn_gated * w.gated + f.saved.ffn_plain * (1.0 - w.gated)
    token = w.top_k * (f.saved.expert_hidden * w.hidden * stage.layouts.etp + ffn * w.moe_ffn_hidden)
    return spread * token * stage.tokens / stage.sequence_split * layers * stage.in_flight


def _recomputed(stage: Stage) -> tuple[FloatArray, FloatArray]:
    """Return the number of recomputed layers, and of those recomputed at once."""
    layouts = stage.layouts
    full = (layouts.recompute >= RECOMPUTE_UNIFORM) * 1.0
    block = layouts.recompute == RECOMPUTE_BLOCK
    recomputed = np.where(block, np.minimum(layouts.recompute_layers * layouts.vp, stage.layers), stage.layers) * full
    # With blocks the last layer, first in the backward pass, is recomputed only where all layers are.
    at_once = np.where(block, (recomputed >= stage.layers) * 1.0, np.clip(layouts.recompute_layers, 1.0, stage.layers))
    return recomputed, at_once * full


AHEAD = 0.8
"""Share of gathered bytes that lingers where the host never waits for another stage (Ultra-Scale Playbook)."""


def _lingering(w: Workload, stage: Stage, f: FrameworkSpec) -> FloatArray | float:
    """Return the bytes that layers have gathered and freed while the host is ahead of the GPU.

    The host of a pipeline stage is ahead by all but two of the micro-batches in flight.
    """
    if not f.lingering_bytes:
        return 0.0
    ahead = np.where(stage.layouts.pp > 1, np.maximum(stage.in_flight - 2.0, 0.0), AHEAD)
    ahead *= (stage.sequence_split > 1) & ~network_waits(stage.layouts, f)
    return f.lingering_bytes * w.hidden * stage.tokens * stage.layers * ahead


def _joined(w: Workload, stage: Stage) -> FloatArray:
    """Return the bytes that multi-token prediction keeps before its layer: inputs and joined outputs of two norms.

    Its backward pass comes right after its forward pass, so that at most one micro-batch is kept.
    """
    return JOINED_BYTES * w.hidden * stage.tokens / stage.sequence_split


def _table(w: Workload, stage: Stage, f: FrameworkSpec) -> FloatArray:
    rotary = np.asarray(w.position_params) == 0
    result: FloatArray = rotary * (f.table_bytes * w.query_size / w.num_heads) * w.seq_len / stage.layouts.cp
    return result


def head_memory(workload: Workload, stage: Stage, framework: FrameworkSpec) -> tuple[FloatArray, FloatArray]:
    """Return the bytes of output layer and loss, forward and backward; 0 on stages without them."""
    head = framework.head
    vocab = np.asarray(stage.padded_vocab)
    hidden = head.hidden * workload.hidden / stage.sequence_split
    loss = (hidden + head.backward_vocab * vocab) * stage.tokens
    projection = (hidden + HALF * vocab) * stage.tokens + head.weight_gradient * vocab * workload.hidden
    going_forward = (hidden + head.forward_hidden * workload.hidden + head.forward_vocab * vocab) * stage.tokens
    # Multi-token prediction computes logits and loss once more for each of its layers.
    sets = stage.is_last + stage.mtp_layers
    return sets * going_forward, sets * np.maximum(loss, projection)


Parts = dict[str, FloatArray]

CHANGING = ("gradients", "casts", "activations", "working", "logits", "step")
"""Causes that change within a step, unlike weights, optimizer and buffers."""


def buffers(w: Workload, stage: Stage, f: FrameworkSpec, c: MemoryCoefficients, state: StateMemory) -> FloatArray:
    """Return the bytes of permanent buffers."""
    layouts = stage.layouts
    scores = np.where(layouts.flash_attention, 0.0, f.score_buffer * w.num_heads * w.seq_len * stage.tokens / stage.tp)
    gathered = np.where(stage.sequence_split > 1, f.gather_bytes * w.hidden * stage.tokens, 0.0)
    return c.fixed_bytes + scores + gathered + state.buckets


def moments(w: Workload, stage: Stage, f: FrameworkSpec, c: MemoryCoefficients, state: StateMemory) -> list[Parts]:
    """Return the changing bytes at each moment of a step."""
    head_forward, head_backward = head_memory(w, stage, f)
    acts = activation_memory(w, stage, f)
    full = stage.layouts.recompute >= RECOMPUTE_UNIFORM
    mask = np.where(stage.layouts.flash_attention, 0.0, f.mask_bytes * w.seq_len * stage.tokens * stage.in_flight)
    saved = c.activations * acts.saved + mask
    # Gradients at the beginning of a backward pass: those of the micro-batches before it.
    gradients = state.gradients
    if f.frees_gradients:
        gradients = np.where(stage.layouts.num_micro_batches > 1, state.gradients, 0.0)
    kept_casts = state.head_casts + np.where(full, 0.0, state.layer_casts)
    found = [
        {"activations": saved, "logits": c.logits * head_forward, "casts": state.layer_casts + state.head_casts},
        {"activations": saved, "logits": c.logits * head_backward, "casts": kept_casts},
        {"activations": saved, "working": c.activations * acts.attention_peak, "casts": kept_casts},
        {"activations": saved, "working": c.activations * acts.mlp_peak, "casts": kept_casts},
    ]
    found = [moment | {"gradients": gradients} for moment in found]
    if f.frees_gradients:
        found.append({"gradients": state.gradients, "working": c.activations * acts.one_layer})
    return [*found, {"gradients": state.gradients, "step": state.step}]
