"""What the hardware offers, as plain numbers: scalars for one cluster, arrays for rows of many."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.estimate.workload import Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Hold peak rates and link speeds; each field is a number, or an array with one number per layout."""

    matrix_flops: Number
    """Peak of the matrix units in the job's precision."""
    attention_flops: Number
    """Peak of the matrix units in bf16, in which attention runs whatever the precision."""
    memory_bytes_per_s: Number
    memory_bytes: Number
    num_gpus: Number
    gpus_per_node: Number
    fast_domain: Number
    fast_bytes_per_s: Number
    slow_bytes_per_s: Number
    """Outside a fast domain: the network, or PCIe in a single node without NVLink."""
    fast_latency_s: Number
    slow_latency_s: Number

    @classmethod
    def of(cls, cluster: ClusterSpec, precision: str) -> Self:
        """Take the numbers of one cluster."""
        gpu = cluster.gpu
        slow = cluster.network if cluster.num_nodes > 1 else cluster.node_link
        return cls(
            matrix_flops=gpu.matrix_flops(precision),
            attention_flops=gpu.bf16_flops,
            memory_bytes_per_s=gpu.memory_bytes_per_s,
            memory_bytes=float(gpu.memory_bytes),
            num_gpus=float(cluster.num_gpus),
            gpus_per_node=float(cluster.gpus_per_node),
            fast_domain=float(cluster.fast_domain),
            fast_bytes_per_s=cluster.fast_link.bytes_per_s,
            slow_bytes_per_s=slow.bytes_per_s,
            fast_latency_s=cluster.fast_link.latency_s,
            slow_latency_s=slow.latency_s,
        )

    @classmethod
    def stack(cls, machines: list[Self]) -> Self:
        """Join the machines of many rows into one of arrays."""
        return cls(**{f.name: np.array([getattr(m, f.name) for m in machines], np.float64) for f in fields(cls)})
