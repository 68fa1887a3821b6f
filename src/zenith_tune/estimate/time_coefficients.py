"""The handful of physical numbers that the model of time takes from measurements."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Self

import numpy as np

from zenith_tune.estimate.estimate import FloatArray

SHARES = frozenset(
    {
        "gemm_efficiency",
        "attention_efficiency",
        "memory_efficiency",
        "expert_efficiency",
        "fast_efficiency",
        "slow_efficiency",
        "tensor_exposed",
        "expert_exposed",
        "handover_exposed",
        "data_overlap",
    }
)
"""Coefficients that are shares of something, and never more than all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeCoefficients:
    """Hold what a framework gets out of a kind of GPU; the defaults are those of a well-tuned Megatron on H100."""

    gemm_efficiency: float = 0.72
    """Share of the matrix peak that large matrix products reach."""
    attention_efficiency: float = 0.45
    """Share of the bf16 matrix peak that the attention kernel reaches."""
    memory_efficiency: float = 0.75
    """Share of the memory bandwidth that everything else reaches: norms, activations, reading weights."""
    hidden_passes: float = 30.0
    """Bytes per token and hidden unit that one layer moves, forward and backward, besides its matrix products."""
    ffn_passes: float = 16.0
    """The same per unit of the feed-forward width."""
    score_passes: float = 20.0
    """Bytes moved per attention score without a fused kernel, forward and backward (Korthikanti et al. 2022, 4.1)."""
    logit_passes: float = 24.0
    """Bytes moved per logit, forward and backward."""
    layer_launch_s: float = 1.0e-3
    """Time of the host per layer and micro-batch, forward and backward: no layer is quicker."""
    expert_launch_s: float = 1.0e-3
    """The same that a layer with experts adds."""
    expert_product_s: float = 1.0e-4
    """What launching the products of one of a rank's experts adds to that."""
    expert_passes: float = 30.0
    """Bytes per routed token and hidden unit that sorting tokens by expert and back moves, forward and backward."""
    expert_efficiency: float = 0.9
    """Share of gemm_efficiency that the grouped products of experts reach."""
    expert_narrowness: float = 512.0
    """Width of an expert's share at which its products reach half of that."""
    fast_efficiency: float = 0.7
    """Share of the link inside a fast domain that collectives reach."""
    slow_efficiency: float = 0.6
    """Share of the network that collectives reach."""
    tensor_exposed: float = 0.8
    """Share of the tensor-parallel traffic that no computation hides."""
    expert_exposed: float = 0.8
    """Share of the all-to-all traffic of experts that no computation hides."""
    network_wait_s: float = 2.0e-5
    """Wait per tensor-parallel rank and layer where the group leaves its fast domain."""
    stage_wait_s: float = 1.0e-5
    """Wait per tensor-parallel rank and layer in a pipeline that spans nodes."""
    data_overlap: float = 0.7
    """Share of one backward pass behind which the reduction of gradients hides."""
    data_decay: float = 0.15
    """Power with which the bandwidth of data-parallel collectives falls as nodes are added."""
    shard_penalty: float = 1.0
    """Traffic of a sharded optimizer over that of a plain all-reduce, as far as it is exposed."""
    optimizer_passes: float = 30.0
    """Bytes moved per parameter that a rank updates."""
    step_overhead_s: float = 5.0e-3
    """What a step costs besides: data, logging, clipping."""
    handover_exposed: float = 0.3
    """Share of the messages between the chunks of an interleaved pipeline that no computation hides."""
    handover_wait_s: float = 0.0
    """What a stage waits for each message of its neighbours where the network is in a bad state."""
    handover_nodes: float = 1000.0
    """Number of nodes beyond which the network is in that state."""
    thrash: float = 4.0
    """How many times longer a step takes once the memory is all but full, and the allocator frees and claims blocks."""

    def to_vector(self, names: tuple[str, ...]) -> FloatArray:
        """Return the logarithms of the named coefficients."""
        return np.log([max(getattr(self, name), 1e-12) for name in names])

    def with_vector(self, names: tuple[str, ...], vector: FloatArray) -> Self:
        """Return a copy with the named coefficients taken from their logarithms: numbers, or columns of many."""
        most = np.array([1.0 if name in SHARES else np.inf for name in names])
        values = np.minimum(np.exp(vector).T, most).T
        return replace(self, **dict(zip(names, values if values.ndim > 1 else values.tolist(), strict=True)))

    def to_dict(self) -> dict[str, float]:
        """Return the coefficients by name."""
        return asdict(self)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of all coefficients."""
        return tuple(field.name for field in fields(cls))
