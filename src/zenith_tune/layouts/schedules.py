"""The schedules of a pipeline: in which order a rank works through the chunks and micro-batches of a step.

Legend: p ranks of v chunks each, rank r from 0; m micro-batches; f, b and w the times of a chunk's forward pass, of its
backward pass for inputs and of that for weights.

A step takes m*v*(f+b+w) and the bubble, which is (p-1) times what a schedule waits for each further rank. Both figures
of a schedule are those of its order of work, played event by event with equal stages; with 2p-1 micro-batches or more.

- 1f1b waits f+b+w (Narayanan et al. 2021, arXiv 2104.04473), with v chunks in turn where v is above 1. So does gpipe,
  which runs all forward passes first.
- zero-bubble puts off w, on later ranks by more of them: it waits f+b-w (Qi et al. 2024, arXiv 2401.10241, ZB-H1).
- zbv folds the pipeline, so that rank r has chunks r and 2p-1-r, and puts off w at the end of a step: it waits b, or
  2*(b-w) where that is more. With f = b = w this is a third of what 1f1b waits, not nothing as in the paper.
- dualpipe-v folds it too and runs a forward and a backward pass in turn (DeepSeek-AI 2024, arXiv 2412.19437): it waits
  f+b-w, or 2*b-w less a share of f. What the overlap of both hides of experts' messages is not counted.

w is needed by no other rank, so that a schedule that puts it off does it where 1f1b waits; what it reads is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from zenith_tune.layouts.layout import FOLDED, SCHEDULES
from zenith_tune.layouts.layout_batch import FloatArray, LayoutBatch

Wait = Callable[[FloatArray, FloatArray, FloatArray, FloatArray], FloatArray]
Held = Callable[[Any, Any, Any, Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One schedule."""

    wait: Wait
    """What a rank waits for each other rank of the pipeline, of f, b, w and p."""
    held: Held
    """The chunks whose activations a rank holds at once, at most m*v; of p, v, the ranks behind it, and m."""


def _one_forward_one_backward(p: Any, v: Any, behind: Any, m: Any) -> Any:
    return np.where(v > 1, 2.0 * behind + (v - 1.0) * p + 1.0, behind + 1.0)


def _zero_bubble_wait(f: FloatArray, b: FloatArray, w: FloatArray, p: FloatArray) -> FloatArray:
    return f + np.maximum(b - w, 0.0)


def _dualpipe_wait(f: FloatArray, b: FloatArray, w: FloatArray, p: FloatArray) -> FloatArray:
    return np.maximum(_zero_bubble_wait(f, b, w, p), 2.0 * b - w - f / np.maximum(p - 1.0, 1.0))


KINDS = {
    "1f1b": Schedule(wait=lambda f, b, w, p: f + b + w, held=_one_forward_one_backward),
    "gpipe": Schedule(wait=lambda f, b, w, p: f + b + w, held=lambda p, v, behind, m: m * v),
    "zero-bubble": Schedule(wait=_zero_bubble_wait, held=lambda p, v, behind, m: p * v),
    "zbv": Schedule(
        wait=lambda f, b, w, p: np.maximum(np.maximum(f, b), 2.0 * (b - w)), held=lambda p, v, behind, m: p * v
    ),
    "dualpipe-v": Schedule(wait=_dualpipe_wait, held=lambda p, v, behind, m: p * v + 1),
}
assert tuple(KINDS) == SCHEDULES


def micro_batches_in_flight(layouts: LayoutBatch, stage: FloatArray) -> FloatArray:
    """Return how many micro-batches' activations of all its layers a stage holds at once.

    1F1B: min(m, p - r) (Narayanan et al. 2021, arXiv 2104.04473, section 2.2.1). Interleaved: chunks of 1/v of its
    layers, 2(p - r - 1) + (v - 1)p + 1 of them but at most m*v (`forward_backward_pipelining_with_interleaving`).
    """
    sizes = (layouts.pp, layouts.vp, layouts.pp - stage - 1.0, layouts.num_micro_batches)
    chunks = _chosen(layouts, lambda kind: kind.held(*sizes))
    return np.minimum(chunks / layouts.vp, layouts.num_micro_batches)


def bubble_share(layouts: LayoutBatch, forward: FloatArray, weights: FloatArray) -> FloatArray:
    """Return how much of a chunk's time ranks wait for each other rank: all of it where w is not put off.

    `forward` is the share of the forward pass in that time, `weights` that of the backward pass for weights.
    """
    inputs, p = 1.0 - forward - weights, layouts.pp.astype(np.float64)
    return _chosen(layouts, lambda kind: kind.wait(forward, inputs, weights, p))


def _chosen(layouts: LayoutBatch, figure: Callable[[Schedule], FloatArray]) -> FloatArray:
    found = figure(KINDS[SCHEDULES[0]])
    for code in np.unique(layouts.schedule[layouts.schedule > 0]):
        found = np.where(layouts.schedule == code, figure(KINDS[SCHEDULES[code]]), found)
    return np.asarray(found, np.float64)


def chunk_of(layouts: LayoutBatch, rank: FloatArray, turn: int) -> FloatArray:
    """Return the chunk of the model that a rank has in its turn: r, r+p, r+2p, ..., or folded r and 2p-1-r."""
    if not turn:
        return rank
    return np.where(layouts.schedule_is(FOLDED), 2.0 * layouts.pp - 1.0 - rank, rank + turn * layouts.pp)


def last_chunk_rank(layouts: LayoutBatch) -> FloatArray:
    """Return the rank that has the output layer and the loss."""
    return np.where(layouts.schedule_is(FOLDED), 0.0, layouts.pp - 1.0)
