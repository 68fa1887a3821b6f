"""The keys of a DeepSpeed configuration that are worth searching: where each stands, what to try, and when it matters.

Choices are around DeepSpeed's own defaults (runtime/zero/config.py of 0.19).
"""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.strategies.zero_progressive.ds_config import Keys
from zenith_tune.study.parameters import Value

OFF, CPU = "none", "cpu"
STAGES = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroAxis:
    """Hold one key that may be searched."""

    keys: Keys
    choices: tuple[Value, ...]
    first_stage: int = 0
    """The lowest stage at which it has an effect."""
    last_stage: int = 3

    def matters(self, stage: int) -> bool:
        """Tell whether the key has an effect at a stage."""
        return self.first_stage <= stage <= self.last_stage


def _zero(name: str, choices: tuple[Value, ...], first_stage: int, last_stage: int = 3) -> ZeroAxis:
    return ZeroAxis(keys=("zero_optimization", name), choices=choices, first_stage=first_stage, last_stage=last_stage)


_BUCKETS = (500_000_000, 50_000_000, 200_000_000)
AXES: dict[str, ZeroAxis] = {
    "reduce_bucket_size": _zero("reduce_bucket_size", _BUCKETS, 1),
    "allgather_bucket_size": _zero("allgather_bucket_size", _BUCKETS, 1, 2),
    "overlap_comm": _zero("overlap_comm", (True, False), 2),
    "reduce_scatter": _zero("reduce_scatter", (True, False), 2),
    "contiguous_gradients": _zero("contiguous_gradients", (True, False), 2),
    "allgather_partitions": _zero("allgather_partitions", (True, False), 1, 2),
    "stage3_prefetch_bucket_size": _zero("stage3_prefetch_bucket_size", (50_000_000, 5_000_000, 500_000_000), 3),
    "stage3_param_persistence_threshold": _zero("stage3_param_persistence_threshold", (100_000, 10_000, 1_000_000), 3),
    "stage3_max_live_parameters": _zero("stage3_max_live_parameters", (1_000_000_000, 100_000_000), 3),
    "offload_optimizer": _zero("offload_optimizer", (OFF, CPU), 1),
    "offload_param": _zero("offload_param", (OFF, CPU), 3),
}
"""By the name that a point has for it."""
CHECKPOINTING = "checkpointing"
"""Recomputing activations; it is the model's own switch, which the Trainer has an argument for and the JSON has not."""
MEMORY_MODES = (CHECKPOINTING, "offload_optimizer", "offload_param")
"""What trades time for memory, the cheapest first: each has an edge of the micro-batch of its own."""
TUNING = tuple(name for name in AXES if name not in MEMORY_MODES)


def matters(name: str, stage: int) -> bool:
    """Tell whether a searched name has an effect at a stage; a name that nobody knows may.

    >>> matters("overlap_comm", 1), matters("overlap_comm", 2), matters("gradient_clipping", 0)
    (False, True, True)
    """
    axis = AXES.get(name)
    return axis is None or axis.matters(stage)
