"""How the GPUs of a machine are linked, as nvidia-smi prints it, and how far tensor parallelism may reach."""

from __future__ import annotations

import enum
import itertools
import math
import pathlib
import re
from dataclasses import dataclass, replace
from typing import Any

from zenith_tune.describe.cluster_spec import ClusterSpec, refuse_counts
from zenith_tune.describe.gpu_catalog import find_gpu, match_gpu, node_fields, num_nvlinks, nvlink_bytes_per_s
from zenith_tune.errors import UsageError
from zenith_tune.study.files import read_regular
from zenith_tune.study.trial_log import without_escapes

HINT = "save it again with `nvidia-smi topo -m`"
_GPU = re.compile(r"GPU[0-9]+")
_MATRIX = re.compile(r"^[ \t]*GPU0[ \t]", re.MULTILINE)
_NVLINK = re.compile(r"NV([1-9][0-9]?)")
_LISTED = re.compile(r"^GPU ([0-9]+): |^ +(MIG) ", re.MULTILINE)
"""The lines of `nvidia-smi -L`: a GPU, and indented under it its MIG instances."""
_STATUS = re.compile(r"^GPU [0-9]+: (.+?)(?: \(UUID.*)?\n((?:\s+Link [0-9]+: .+\n?|.*links are inActive.*\n?)+)", re.M)
"""What `nvidia-smi nvlink -s` prints of a GPU: its name, and the state of its links."""
_UP = re.compile(r"Link [0-9]+: [0-9.]+ GB/s")


class Path(enum.IntEnum):
    """The path between two GPUs, from the fastest to the slowest."""

    SELF = 0
    NVLINK = 1
    PIX = 2
    PXB = 3
    PHB = 4
    NODE = 5
    SYS = 6
    UNKNOWN = 7


WAYS = {
    Path.PIX: "one PCIe switch",
    Path.PXB: "several PCIe switches",
    Path.PHB: "the PCIe host bridge",
    Path.NODE: "the host bridges of a socket",
    Path.SYS: "the link between sockets",
}
UNKNOWN = "?"
"""A cell that nothing is said of but that no NVLink is there."""
_CELLS = {"X": Path.SELF, "SOC": Path.SYS, UNKNOWN: Path.UNKNOWN} | {path.name: path for path in WAYS}
"""Drivers before 2018 wrote SOC for SYS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The links between the GPUs of a machine."""

    paths: tuple[tuple[Path, ...], ...]
    nvlinks: tuple[tuple[int, ...], ...]
    """NVLinks between each pair; behind a switch every pair shows all that a GPU has."""

    @property
    def num_gpus(self) -> int:
        return len(self.paths)

    @property
    def islands(self) -> list[list[int]]:
        """Groups of GPUs that NVLinks join, directly or through one another; a lone GPU is one too."""
        left, islands = list(range(self.num_gpus)), []
        while left:
            island = [left.pop(0)]
            for gpu in island:
                island += [other for other in left if self.nvlinks[gpu][other]]
                left = [other for other in left if other not in island]
            islands.append(sorted(island))
        return islands

    @property
    def fast_domain(self) -> int:
        """The largest group size that divides every island: with islands of 4 and 6 it is 2."""
        return math.gcd(*(len(island) for island in self.islands))

    @property
    def device_order(self) -> list[int]:
        """The GPUs island by island, so that neighbouring ranks share an island."""
        return [gpu for island in self.islands for gpu in island]

    def first(self, num_gpus: int) -> Topology:
        """Return the links between the first GPUs, which a job of fewer GPUs gets."""
        paths = tuple(row[:num_gpus] for row in self.paths[:num_gpus])
        return Topology(paths=paths, nvlinks=tuple(row[:num_gpus] for row in self.nvlinks[:num_gpus]))

    def nvlinks_per_gpu(self, most: int) -> int:
        """Return the NVLinks of the GPU that uses the fewest, where a GPU has `most` of them.

        A row that adds up to more shows links to a switch, which every cell repeats.
        """
        return min(sum(row) if sum(row) <= most else min(cell for cell in row if cell) for row in self.nvlinks)

    @property
    def slowest_path(self) -> Path:
        """The slowest path between any two GPUs."""
        return max(max(row) for row in self.paths)


def parse_topology(text: str, source: str = "") -> Topology:
    """Read the matrix that `nvidia-smi topo -m` prints, after the list of `nvidia-smi -L` or without one.

    What `nvidia-smi nvlink -s` prints says which links of the matrix are up, or stands alone. Errors name the `source`,
    where there is one.
    """
    text = without_escapes(text).replace("\r", "")
    try:
        return _parsed(text, cut_gpus(text))
    except ValueError as error:
        raise UsageError(f"{source + ': ' if source else ''}topology: {error}", hint=HINT) from None


def _parsed(text: str, cut: list[int]) -> Topology:
    cells = _working(text, links) if (links := nvlink_status(text)) else _cells(text)
    for gpu in (gpu for gpu in cut if gpu < len(cells)):
        # An instance reaches others only through the host's memory, whatever links its GPU has.
        for other in (other for other in range(len(cells)) if other != gpu):
            cells[gpu][other] = cells[other][gpu] = Path.SYS.name
    for a, row in enumerate(cells):
        for b, cell in enumerate(row):
            if cell not in _CELLS and not _NVLINK.fullmatch(cell):
                raise ValueError(f"a cell must be X, NV1 to NV99, PIX, PXB, PHB, NODE or SYS, but is {cell!r}")
            if cell != cells[b][a] or (a == b) != (cell == "X"):
                raise ValueError(f"GPU{a} to GPU{b} must be as GPU{b} to GPU{a}, with X on the diagonal alone")
    nvlinks = tuple(tuple(int(match[1]) if (match := _NVLINK.match(cell)) else 0 for cell in row) for row in cells)
    return Topology(paths=tuple(tuple(_CELLS.get(cell, Path.NVLINK) for cell in row) for row in cells), nvlinks=nvlinks)


def nvlink_status(text: str) -> list[tuple[str, int]]:
    """Return the name of each GPU and how many of its NVLinks are up, by `nvidia-smi nvlink -s`."""
    return [(name, len(_UP.findall(links))) for name, links in _STATUS.findall(text)]


def _working(text: str, links: list[tuple[str, int]]) -> list[list[str]]:
    """Return the cells with no more NVLinks than are up; without a matrix, GPUs are joined as in their usual node."""
    if _MATRIX.search(text):
        cells = _cells(text)
    else:
        gpu = match_gpu(links[0][0])
        # Links that are up where a node has none by default are those of a bridge, which joins two.
        joined = max(node_fields(gpu)["fast_domain"], 2) if gpu else len(links)
        island = [number // joined for number in range(len(links))]
        cells = [["NV99" if a == b else UNKNOWN for b in island] for a in island]
        for gpu_number, row in enumerate(cells):
            row[gpu_number] = "X"
    if len(links) != len(cells):
        raise ValueError(f"the status must be of each of the {len(cells)} GPUs, but is of {len(links)}")
    for a, row in enumerate(cells):
        for b, cell in enumerate(row):
            if match := _NVLINK.fullmatch(cell):
                up = min(int(match[1]), links[a][1], links[b][1])
                row[b] = f"NV{up}" if up else UNKNOWN
    return cells


def cut_gpus(text: str) -> list[int]:
    """Return the GPUs that are cut into MIG instances, where a list says so."""
    found, gpu = [], -1
    for number, is_instance in _LISTED.findall(text):
        if is_instance and gpu >= 0:
            found.append(gpu)
        elif number:
            gpu = int(number)
    return sorted(set(found))


def _cells(text: str) -> list[list[str]]:
    """Return the cells between GPUs; network cards and affinities follow them and are left out."""
    lines = [words for line in text.splitlines() if (words := line.split()) and _GPU.fullmatch(words[0])]
    if not lines:
        raise ValueError("the matrix must have a line that begins with GPU0, but has none")
    header = list(itertools.takewhile(_GPU.fullmatch, lines[0]))
    if header != [f"GPU{number}" for number in range(len(header))]:
        raise ValueError(f"the header must name GPU0 to GPU{len(header) - 1} in this order, but does not")
    if [words[0] for words in lines[1:]] != header:
        raise ValueError(f"the matrix must have a line for each of its {len(header)} GPUs, but has {len(lines) - 1}")
    found = [words[1 : len(header) + 1] for words in lines[1:]]
    for name, row in zip(header, found, strict=True):
        if len(row) < len(header):
            raise ValueError(f"{name} must have {len(header)} cells, but has {len(row)}")
    return found


MAX_BYTES = 2**20
MAX_SHOWN = 8
"""Islands that are listed before the rest is left out."""


def read_topology(path: pathlib.Path) -> Topology:
    """Read what `nvidia-smi topo -m`, `nvidia-smi nvlink -s` or both printed on one node, after `-L` or without it."""
    try:
        text = read_regular(path, MAX_BYTES).decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise UsageError(f"--topology {str(path)!r} cannot be read ({error.strerror})", hint="check the path") from None
    return parse_topology(text, source=str(path))


def with_topology(cluster: ClusterSpec, topology: Topology, source: str) -> ClusterSpec:
    """Return the cluster with the links that the matrix of one node shows."""
    node = topology.first(cluster.num_gpus)
    usual = {name: getattr(cluster, name) for name in ("gpus_per_node", "fast_domain", "fast_link", "node_link")}
    fields = links_of(find_gpu(cluster.gpu.name) or "", node, usual)
    counts = {name: fields[name] for name in ("gpus_per_node", "fast_domain")}
    refuse_counts(f"cluster {cluster.name!r} with nodes as {source}", num_gpus=cluster.num_gpus, **counts)
    return replace(cluster, name=f"{cluster.name} as {source}", **fields)


def links_of(gpu: str, topology: Topology, usual: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of ClusterSpec that a node's matrix decides; `usual` are those of the catalog."""
    if topology.fast_domain == 1:
        return {"gpus_per_node": topology.num_gpus, "fast_domain": 1, "fast_link": usual["node_link"]}
    nvlinks = topology.nvlinks_per_gpu(num_nvlinks(gpu))
    rate = nvlink_bytes_per_s(gpu, nvlinks) or usual["fast_link"].bytes_per_s
    # A rack of nodes that NVLink joins shows each of them its own GPUs alone.
    is_rack = usual["fast_domain"] > usual["gpus_per_node"] and len(topology.islands) == 1
    return {
        "gpus_per_node": topology.num_gpus,
        "fast_domain": usual["fast_domain"] if is_rack else topology.fast_domain,
        "fast_link": replace(usual["fast_link"], bytes_per_s=rate),
    }


def tensor_reason(cluster: ClusterSpec, topology: Topology | None = None) -> str:
    """Return one line on why tensor parallelism stays within `cluster.fast_domain` GPUs."""
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
    within = f"tensor parallelism stays within {size}, other paths are slower{_order(topology)}"
    return f"NVLink joins {size} GPUs{_islands(topology)}: {within}"


def _unjoined(topology: Topology | None) -> str:
    if topology is None or topology.num_gpus == 1:
        return "no NVLink joins the GPUs"
    if any(len(island) > 1 for island in topology.islands):
        return f"NVLink joins some GPUs but not all alike{_islands(topology)}, so that no group of two fits everywhere"
    slowest = topology.slowest_path
    if slowest is Path.UNKNOWN:
        return "no NVLink joins the GPUs"
    return f"no NVLink joins the GPUs (the slowest path is {slowest.name}, {WAYS[slowest]})"


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
