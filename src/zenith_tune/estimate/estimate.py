"""What the model of memory and time says of many layouts: breakdowns, totals, spreads and the risk of running out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Hold one number per layout; the parts of a breakdown add up to its total."""

    step_s: FloatArray
    time_parts: dict[str, FloatArray]
    """Seconds of a step by cause: compute, recompute, memory, tp, cp, ep, bubble, p2p, dp, optimizer, overhead."""
    memory_bytes: FloatArray
    """Peak of the fullest pipeline stage as the device sees it: allocated, allocator's reserve, CUDA context."""
    memory_parts: dict[str, FloatArray]
    """Bytes on the fullest stage by cause: weights, gradients, optimizer, activations, logits, buffers, reserve..."""
    step_spread: FloatArray
    """Standard deviation of the logarithm of measured over estimated step time."""
    memory_spread: FloatArray
    oom_probability: FloatArray

    def __len__(self) -> int:
        return len(self.step_s)
