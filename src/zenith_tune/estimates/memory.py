"""Peak memory of each layout: the fullest stage, at the fullest moment of a step.

The moments are the loss in the forward and in the backward pass, the attention and the feed-forward part of the first
layer of the backward pass, its last layer (where gradients are freed after each step), and the optimizer's step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

from zenith_tune.describe.framework_spec import FrameworkSpec
from zenith_tune.estimates.activation_memory import CHANGING, Parts, buffers, moments, routed_spread
from zenith_tune.estimates.calibration import MemoryCoefficients
from zenith_tune.estimates.stage import Stage, first_moe_rank, is_mixed, stage_layers
from zenith_tune.estimates.state_memory import state_memory
from zenith_tune.estimates.workload import FloatArray, Workload
from zenith_tune.layouts.layout_batch import LayoutBatch
from zenith_tune.units import GIB

_TEMPORARY = ("activations", "working", "logits", "step")
CONTEXT_SPREAD = 0.5 * GIB
"""Standard deviation of CUDA contexts and communication buffers between machines; assumed, not fitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Memory of each layout; the parts add up to the device memory."""

    stage: FloatArray
    allocated_bytes: FloatArray
    """Peak of the allocated bytes, as torch.cuda.max_memory_allocated returns it."""
    device_bytes: FloatArray
    """Allocated bytes with the allocator's reserve, the CUDA context and communication buffers."""
    parts: Parts
    routed_spread: FloatArray | float = 0.0
    """Standard deviation of the busiest expert-parallel rank's bytes over its possible loads."""

    @property
    def unsure_bytes(self) -> FloatArray:
        """Standard deviation of unmeasured bytes: reserve by its size, context by CONTEXT_SPREAD, and routing."""
        variances = np.square(self.parts["reserve"]) + CONTEXT_SPREAD**2 + np.square(self.routed_spread)
        return np.sqrt(variances)


def estimate_memory(
    workload: Workload,
    layouts: LayoutBatch,
    framework: FrameworkSpec,
    coefficients: MemoryCoefficients,
    stage: FloatArray | None = None,
) -> MemoryEstimate:
    """Return the memory of each layout on pipeline rank `stage`, or on the fullest rank.

    It is that of a typical run: the account times exp(log_middle) of the coefficients.
    """
    if stage is None:
        stage = fullest_stage(workload, layouts, framework, coefficients)
    at = Stage.of(workload, layouts, framework, stage)
    parts = _parts(workload, at, framework, coefficients)
    routed = coefficients.activations * routed_spread(workload, at, framework) if np.any(workload.imbalance) else 0.0
    if coefficients.log_middle:
        parts = {name: part * np.exp(coefficients.log_middle) for name, part in parts.items()}
    allocated = _total(parts)
    parts["reserve"] = coefficients.reserve * _total({name: parts[name] for name in _TEMPORARY})
    parts["context"] = np.full(len(layouts), coefficients.context_bytes)
    device = allocated + parts["reserve"] + parts["context"]
    return MemoryEstimate(
        stage=stage, allocated_bytes=allocated, device_bytes=device, parts=parts, routed_spread=routed
    )


def fullest_stage(w: Workload, layouts: LayoutBatch, f: FrameworkSpec, c: MemoryCoefficients) -> FloatArray:
    """Return the fullest pipeline rank, a row for each set of coefficients."""
    peak = _peak(w, layouts, f, c, np.zeros(len(layouts)))
    best = np.zeros_like(peak)
    for rank in _likely_ranks(w, layouts, f):
        rows = np.flatnonzero(rank)
        if len(rows):
            other = _peak(w.take(rows), layouts.take(rows), f, c, rank[rows])
            best[..., rows] = np.where(other > peak[..., rows], rank[rows], best[..., rows])
            peak[..., rows] = np.maximum(peak[..., rows], other)
    return best


def _likely_ranks(w: Workload, layouts: LayoutBatch, f: FrameworkSpec) -> list[FloatArray]:
    """Return the other ranks that may be fuller than the first, or 0 where there is none.

    The first rank has the embedding and the most micro-batches, the last the loss; the second may have one layer more
    than the first. Where dense layers lead the model, the rank at which they end and the next may be fuller. All others
    are at most as full as one of these.
    """
    last = layouts.pp.astype(np.float64) - 1.0
    second = np.minimum(last, 1.0)
    if f.own_pipeline is not None or (is_mixed(w) and f.pipeline_split == "cost"):
        # Distributed by cost or by hand, any stage may have a layer more than the one before.
        return [np.minimum(last, float(rank)) for rank in range(1, int(layouts.pp.max(initial=1)))]
    if is_mixed(w):
        with_experts = first_moe_rank(w, layouts, f)
        between = np.maximum(with_experts - 1.0, second)
        return [second, last, with_experts, np.where(between > second, between, 0.0)]
    if f.pipeline_split == "cost":
        return [last]
    more = stage_layers(w, layouts, f, second) > stage_layers(w, layouts, f, 0.0 * second)
    return [second * more, last]


def _peak(w: Workload, layouts: LayoutBatch, f: FrameworkSpec, c: MemoryCoefficients, rank: FloatArray) -> FloatArray:
    """Return the bytes at the fullest moment of one stage."""
    stage = Stage.of(w, layouts, f, rank)
    state = state_memory(w, stage, f)
    found = [_total(moment) for moment in moments(w, stage, f, c, state)]
    return reduce(np.maximum, found) + state.weights + state.optimizer + buffers(w, stage, f, c, state)


def _parts(w: Workload, stage: Stage, f: FrameworkSpec, c: MemoryCoefficients) -> Parts:
    """Return the bytes by cause at the fullest moment of one stage."""
    state = state_memory(w, stage, f)
    found = moments(w, stage, f, c, state)
    best = np.stack(np.broadcast_arrays(*(_total(moment) for moment in found))).argmax(axis=0)
    changing = {name: _chosen(best, name, found) for name in CHANGING}
    lasting = {"weights": state.weights, "optimizer": state.optimizer, "buffers": buffers(w, stage, f, c, state)}
    return lasting | changing


def _chosen(best: npt.NDArray[np.intp], name: str, found: list[Parts]) -> FloatArray:
    """Return one part at the moment that is fullest for each layout."""
    result = np.zeros(best.shape)
    for index, moment in enumerate(found):
        if name in moment:
            result = np.where(best == index, moment[name], result)
    return result


def _total(parts: Parts) -> FloatArray:
    return reduce(np.add, parts.values())
