"""What a layout pays for all but filling its memory.

Measured: a DeepSeek-V3-shaped model on H100 at 79.7 GB of 80 fell from 225 to 33 TFLOP/s (Megatron-LM PR 6311), since
the allocator frees and claims blocks again and again.
"""

from __future__ import annotations

import numpy as np

from zenith_tune.estimate.estimate import FloatArray
from zenith_tune.estimate.workload import Number

TIGHT = 0.99
"""Share of the memory at which half of that price is paid."""
WIDTH = 0.0025
"""How gradually, as a share of the memory, a step slows down."""


def slowdown(device_bytes: FloatArray, capacity: Number, thrash: Number) -> FloatArray:
    """Return how much longer a step takes for want of memory; `thrash` is how much where the memory is full.

    >>> slowdown(np.array([50.0, 99.0, 110.0]), 100.0, 5.0).round(2).tolist()
    [1.0, 3.0, 5.0]
    """
    excess = np.clip((device_bytes / capacity - TIGHT) / WIDTH, -40, 40)
    return 1 + (thrash - 1) / (1 + np.exp(-excess))
