"""How far tensor parallelism may reach on a cluster, and why: it stays where NVLink joins the GPUs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from zenith_tune.describe.cluster_spec import ClusterSpec, refuse_counts
from zenith_tune.describe.gpu_catalog import find_gpu
from zenith_tune.describe.machine import links_of
from zenith_tune.describe.topology import Topology, parse_topology
from zenith_tune.errors import UsageError
from zenith_tune.study.files import open_regular

MAX_BYTES = 2**20
MAX_SHOWN = 8
"""Islands that are written out; more are only counted."""
WAYS = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the PCIe host bridge",
    "NODE": "the host bridges of a socket",
    "SYS": "the link between sockets",
}


def read_topology(path: Path) -> Topology:
    """Read what `nvidia-smi topo -m` printed on one node, after `nvidia-smi -L` or without it."""
    try:
        with open_regular(Path(os.path.realpath(path))) as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--topology {str(path)!r} cannot be read ({reason})", hint="check the path") from None
    if len(data) > MAX_BYTES:
        raise UsageError(
            f"--topology {str(path)!r} must be a matrix of some kilobytes, but is over 1 MiB", hint="check it"
        )
    try:
        return parse_topology(data.decode("utf-8-sig", errors="replace"))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def with_topology(cluster: ClusterSpec, topology: Topology, source: str) -> ClusterSpec:
    """Return a cluster whose nodes are linked as the matrix of one of them says."""
    node = topology.first(cluster.num_gpus)
    usual = {name: getattr(cluster, name) for name in ("gpus_per_node", "fast_domain", "fast_link", "node_link")}
    fields = links_of(find_gpu(cluster.gpu.name) or "", node, usual)
    counts = {name: fields[name] for name in ("gpus_per_node", "fast_domain")}
    refuse_counts(f"cluster {cluster.name!r} with nodes as {source}", num_gpus=cluster.num_gpus, **counts)
    return replace(cluster, name=f"{cluster.name} as {source}", **fields)


def tensor_reason(cluster: ClusterSpec, topology: Topology | None = None) -> str:
    """Return how many GPUs tensor parallelism may span at most, which is `cluster.fast_domain`, and why, in a line."""
    if cluster.num_gpus == 1:
        return "with one GPU there is nothing to spread: tensor, pipeline and data parallelism stay at 1"
    size, of_node = cluster.fast_domain, cluster.gpus_per_node
    if size < of_node or size == 1:
        return node_reason(size, topology)
    if cluster.num_gpus < of_node:
        return f"NVLink joins the {cluster.num_gpus} GPUs: tensor parallelism may span all of them"
    what = f"all {size} GPUs of a node" if size == of_node else f"{size} GPUs of several nodes"
    return f"NVLink joins {what}: tensor parallelism stays within {size}; pipeline and data parallelism go across"


def node_reason(size: int, topology: Topology | None) -> str:
    """Return why tensor parallelism stays within `size` GPUs of a node, where that is not all of them."""
    if size == 1:
        return f"{_unjoined(topology)}: tensor parallelism is avoided, in favour of pipeline and data parallelism"
    within = f"tensor parallelism stays within {size}, the other ways are slower{_order(topology)}"
    return f"NVLink joins {size} GPUs{_islands(topology)}: {within}"


def _unjoined(topology: Topology | None) -> str:
    if topology is None or topology.num_gpus == 1:
        return "no NVLink joins the GPUs"
    if any(len(island) > 1 for island in topology.islands):
        return f"NVLink joins some GPUs but not all alike{_islands(topology)}, so that no group of two fits everywhere"
    slowest = topology.slowest_path.name
    return f"no NVLink joins the GPUs (the slowest way is {slowest}, {WAYS[slowest]})"


def _islands(topology: Topology | None) -> str:
    if topology is None:
        return " at a time"
    shown = " | ".join(" ".join(map(str, island)) for island in topology.islands[:MAX_SHOWN])
    more = " | ..." if len(topology.islands) > MAX_SHOWN else ""
    return f" ({shown}{more})"


def _order(topology: Topology | None) -> str:
    """Return how to number the GPUs where neighbours by number are not in one island."""
    if topology is None or topology.device_order == list(range(topology.num_gpus)):
        return ""
    return f"; set CUDA_VISIBLE_DEVICES={','.join(map(str, topology.device_order))} so that neighbours are joined"
