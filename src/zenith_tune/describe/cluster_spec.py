"""A cluster as the planner sees it: a kind of GPU, how many there are, and the links between them."""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.errors import UsageError


def precision_class(precision: str) -> str:
    """Return the kind of matrix products of a precision, whatever a source calls it."""
    text = precision.lower()
    if "fp4" in text:
        return "fp4"
    if "fp8" in text or "float8" in text:
        return "mxfp8" if "mx" in text else "fp8-rowwise" if "rowwise" in text else "fp8"
    return "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """A kind of GPU, as its maker states it; dense rates, without sparsity."""

    name: str
    memory_bytes: int
    bf16_flops: float
    fp8_flops: float = 0.0
    """0 where the GPU has no such unit."""
    fp4_flops: float = 0.0
    fp32_flops: float = 0.0
    """Vector rate, outside the matrix units."""
    memory_bytes_per_s: float

    def matrix_flops(self, precision: str) -> float:
        """Return the peak matrix rate for a precision; one that the GPU lacks runs as bf16."""
        kind = precision_class(precision)
        if kind == "fp4" and self.fp4_flops:
            return self.fp4_flops
        return self.fp8_flops if kind != "bf16" and self.fp8_flops else self.bf16_flops


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """One class of link."""

    bytes_per_s: float
    """One GPU's share, one way."""
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """A cluster of one kind of GPU."""

    name: str
    gpu: GpuSpec
    num_gpus: int
    gpus_per_node: int
    fast_domain: int
    """GPUs joined by `fast_link`: a node with NVLink, a rack of GB200; 1 where there is none."""
    fast_link: LinkSpec
    """The link inside a fast domain: NVLink, xGMI."""
    node_link: LinkSpec
    """The link inside a node but outside a fast domain: PCIe."""
    network: LinkSpec
    """The link between nodes."""

    @property
    def num_nodes(self) -> int:
        """Nodes, the last one perhaps not full."""
        return -(-self.num_gpus // self.gpus_per_node)


def refuse_counts(source: str, *, num_gpus: int, gpus_per_node: int, fast_domain: int) -> None:
    """Raise for numbers that cannot be those of one cluster."""
    if num_gpus < 1 or (num_gpus > gpus_per_node and num_gpus % gpus_per_node):
        problem = f"the number of GPUs must fill nodes of {gpus_per_node}, or be less than one of them"
        below = num_gpus // gpus_per_node * gpus_per_node
        fix = f"take {below} or {below + gpus_per_node}" if below else f"take from 1 to {gpus_per_node}"
        raise UsageError(f"{source}: {problem}, but got {num_gpus}: {fix}")
    small, large = sorted((gpus_per_node, fast_domain))
    if large % small:
        problem = "fast_domain must divide gpus_per_node or be a multiple of it"
        raise UsageError(f"{source}: {problem}, but got {fast_domain} and {gpus_per_node}", hint="change one of them")


def even_domain(num_gpus: int, gpus_per_node: int, fast_domain: int) -> int:
    """Return how many GPUs of each fast domain a job gets, where schedulers spread it evenly over the domains."""
    if num_gpus <= fast_domain or fast_domain <= gpus_per_node:
        return fast_domain
    sizes = range(gpus_per_node, fast_domain + 1, gpus_per_node)
    return max(size for size in sizes if num_gpus % size == 0)
