"""The moments of a step at which memory may peak, with the bytes that each holds by cause."""

from __future__ import annotations

import numpy as np

from zenith_tune.describe.framework_spec import FrameworkSpec
from zenith_tune.estimate.activation_memory import activation_memory
from zenith_tune.estimate.estimate import FloatArray
from zenith_tune.estimate.head_memory import head_memory
from zenith_tune.estimate.memory_coefficients import MemoryCoefficients
from zenith_tune.estimate.stage import Stage
from zenith_tune.estimate.state_memory import StateMemory
from zenith_tune.estimate.workload import Workload
from zenith_tune.layouts.layout_batch import RECOMPUTE_UNIFORM

Parts = dict[str, FloatArray]

CHANGING = ("gradients", "casts", "activations", "working", "logits", "step")
"""Causes that come and go within a step; weights, optimizer and buffers stay."""


def buffers(w: Workload, stage: Stage, f: FrameworkSpec, c: MemoryCoefficients, state: StateMemory) -> FloatArray:
    """Return what stays allocated beside weights and optimizer."""
    at = stage.layouts
    scores = np.where(at.flash_attention, 0.0, f.score_buffer * w.num_heads * w.seq_len * stage.tokens / stage.tp)
    gathered = np.where(stage.sequence_split > 1, f.gather_bytes * w.hidden * stage.tokens, 0.0)
    return c.fixed_bytes + scores + gathered + state.buckets


def moments(w: Workload, stage: Stage, f: FrameworkSpec, c: MemoryCoefficients, state: StateMemory) -> list[Parts]:
    """Return what each moment holds beside what stays."""
    head = head_memory(w, stage, f)
    acts = activation_memory(w, stage, f, c.imbalance)
    full = stage.layouts.recompute >= RECOMPUTE_UNIFORM
    mask = np.where(stage.layouts.flash_attention, 0.0, f.mask_bytes * w.seq_len * stage.tokens * stage.in_flight)
    saved = c.activations * acts.saved + mask
    gradients = _before_backward(stage, f, state)
    kept_casts = state.head_casts + np.where(full, 0.0, state.layer_casts)
    found = [
        {"activations": saved, "logits": c.logits * head.forward, "casts": state.layer_casts + state.head_casts},
        {"activations": saved, "logits": c.logits * head.backward, "casts": kept_casts},
        {"activations": saved, "working": c.activations * acts.attention_peak, "casts": kept_casts},
        {"activations": saved, "working": c.activations * acts.mlp_peak, "casts": kept_casts},
    ]
    found = [moment | {"gradients": gradients} for moment in found]
    if f.frees_gradients:
        found.append({"gradients": state.gradients, "working": c.activations * acts.one_layer})
    return [*found, {"gradients": state.gradients, "step": state.step}]


def _before_backward(stage: Stage, f: FrameworkSpec, state: StateMemory) -> FloatArray:
    """Return the gradients that are there when a backward pass begins: those of the micro-batches before it."""
    if not f.frees_gradients:
        return state.gradients
    return np.where(stage.layouts.num_micro_batches > 1, state.gradients, 0.0)
