"""The laws that the numbers of a cluster keep: GPUs fill nodes, and nodes and fast domains fit into one another."""

from __future__ import annotations

from zenith_tune.errors import UsageError


def refuse_counts(source: str, *, num_gpus: int, gpus_per_node: int, fast_domain: int) -> None:
    """Raise for numbers that cannot be those of one cluster."""
    if num_gpus < 1 or (num_gpus > gpus_per_node and num_gpus % gpus_per_node):
        law = f"the number of GPUs must fill nodes of {gpus_per_node}, or be less than one of them"
        raise UsageError(f"{source}: {law}, but got {num_gpus}: {_nearest(num_gpus, gpus_per_node)}")
    small, large = sorted((gpus_per_node, fast_domain))
    if large % small:
        law = f"fast_domain must divide gpus_per_node or be a multiple of it, but got {fast_domain} and {gpus_per_node}"
        raise UsageError(f"{source}: {law}: change one of them")


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
