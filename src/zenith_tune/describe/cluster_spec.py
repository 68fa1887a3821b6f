"""A cluster as the planner sees it: a kind of GPU, how many there are, and the links between them."""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """Hold what one kind of GPU offers, as its maker states it; dense rates, without sparsity."""

    name: str
    memory_bytes: int
    bf16_flops: float
    fp8_flops: float = 0.0
    """0 where the GPU has none."""
    fp4_flops: float = 0.0
    fp32_flops: float = 0.0
    """Vector rate outside the matrix units."""
    memory_bytes_per_s: float

    def matrix_flops(self, precision: str) -> float:
        """Return the peak matrix rate for a precision; one that the GPU lacks runs as bf16."""
        kind = precision.lower()
        if "fp4" in kind and self.fp4_flops:
            return self.fp4_flops
        if ("fp8" in kind or "fp4" in kind) and self.fp8_flops:
            return self.fp8_flops
        return self.bf16_flops


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """Hold one class of link: what one GPU can send over it, one way, and what each message waits."""

    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """Hold a cluster of one kind of GPU."""

    name: str
    gpu: GpuSpec
    num_gpus: int
    gpus_per_node: int
    fast_domain: int
    """GPUs that reach one another over `fast_link`: a node with NVLink, a rack of GB200; 1 where there is none."""
    fast_link: LinkSpec
    """Inside a fast domain: NVLink, xGMI."""
    node_link: LinkSpec
    """Inside a node but outside a fast domain: PCIe."""
    network: LinkSpec
    """Between nodes, one GPU's share."""

    @property
    def num_nodes(self) -> int:
        """Nodes, the last one perhaps not full."""
        return -(-self.num_gpus // self.gpus_per_node)


def refuse_counts(source: str, *, num_gpus: int, gpus_per_node: int, fast_domain: int) -> None:
    """Raise for numbers that cannot be those of one cluster."""
    if num_gpus < 1 or (num_gpus > gpus_per_node and num_gpus % gpus_per_node):
        problem = f"the number of GPUs must fill nodes of {gpus_per_node}, or be less than one of them"
        raise UsageError(f"{source}: {problem}, but got {num_gpus}: {_nearest(num_gpus, gpus_per_node)}")
    small, large = sorted((gpus_per_node, fast_domain))
    if large % small:
        problem = (
            f"fast_domain must divide gpus_per_node or be a multiple of it, but got {fast_domain} and {gpus_per_node}"
        )
        raise UsageError(f"{source}: {problem}", hint="change one of them")


def even_domain(num_gpus: int, gpus_per_node: int, fast_domain: int) -> int:
    """Return how many GPUs of each fast domain a job gets, where schedulers spread it evenly over the domains.

    >>> even_domain(256, 4, 72), even_domain(144, 4, 72), even_domain(64, 8, 8)
    (64, 72, 8)
    """
    if num_gpus <= fast_domain or fast_domain <= gpus_per_node:
        return fast_domain
    sizes = range(gpus_per_node, fast_domain + 1, gpus_per_node)
    return max(size for size in sizes if num_gpus % size == 0)


def _nearest(num_gpus: int, gpus_per_node: int) -> str:
    below = num_gpus // gpus_per_node * gpus_per_node
    return f"take {below} or {below + gpus_per_node}" if below else f"take from 1 to {gpus_per_node}"
