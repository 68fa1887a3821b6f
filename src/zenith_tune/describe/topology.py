"""How the GPUs of a machine are linked, as `nvidia-smi topo -m` prints it, and how far tensor parallelism may reach."""

from __future__ import annotations

import enum
import itertools
import math
import pathlib
import re
import reprlib
from dataclasses import dataclass, replace
from typing import Any

from zenith_tune.describe.cluster_spec import ClusterSpec, refuse_counts
from zenith_tune.describe.gpu_catalog import find_gpu, num_nvlinks, nvlink_bytes_per_s
from zenith_tune.errors import UsageError
from zenith_tune.study.files import read_regular

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")


def plain_text(text: str) -> str:
    """Return a text without colours, erased lines and titles of windows.

    >>> plain_text("\\x1b]0;title\\x07\\x1b[1;31mred\\x1b[0m")
    'red'
    """
    return _ESCAPES.sub("", text) if "\x1b" in text else text


MAX_GPUS = 1024
"""More than any machine has; a matrix of more is not one that nvidia-smi wrote."""
HINT = "save it anew with `nvidia-smi topo -m`"
_GPU = re.compile(r"GPU[0-9]+", re.ASCII)
_BEGIN = re.compile(r"GPU[0-9]+(?:$|GPU[0-9])", re.ASCII)
_TITLES = re.compile(r"(?:GPU[0-9]+\s*)+", re.ASCII)
"""The GPUs in the header; what copied them from a page may have lost the tabs between them."""
_NVLINK = re.compile(r"NV([0-9]{1,3})", re.ASCII)
_LISTED = re.compile(r"^GPU ([0-9]{1,4}): |^ +(MIG) ", re.ASCII | re.MULTILINE)
"""The lines of `nvidia-smi -L`: a GPU, and further in the instances that it is cut into."""

Row = tuple[int, ...]


class Path(enum.IntEnum):
    """Name the way between two GPUs, from the quickest to the slowest."""

    SELF = 0
    NVLINK = 1
    PIX = 2
    """One PCIe switch."""
    PXB = 3
    """Several PCIe switches."""
    PHB = 4
    """A PCIe host bridge: through the CPU."""
    NODE = 5
    """Several host bridges of one socket."""
    SYS = 6
    """From socket to socket."""


_CELLS = {"X": Path.SELF, "SOC": Path.SYS} | {path.name: path for path in Path if path >= Path.PIX}
"""Drivers before 2018 wrote SOC for SYS."""
_PEER_ACCESS = {"X", "OK", "CNS", "GNS", "TNS", "NS", "DR", "U"}
"""The cells of `nvidia-smi topo -p2p`, whose matrix is often saved behind that of the links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Hold the ways between the GPUs of a machine."""

    paths: tuple[tuple[Path, ...], ...]
    nvlinks: tuple[Row, ...]
    """How many NVLinks join each pair; behind a switch every pair shows all that a GPU has."""

    @property
    def num_gpus(self) -> int:
        """GPUs in the machine."""
        return len(self.paths)

    @property
    def islands(self) -> list[list[int]]:
        """Return the groups of GPUs that NVLinks join, directly or through one another, a lone GPU being one too."""
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
        """The largest size of which groups fill every island: with islands of 4 and 6, fours would be cut in two."""
        return math.gcd(*(len(island) for island in self.islands))

    @property
    def device_order(self) -> list[int]:
        """The GPUs island by island, so that ranks that follow one another are in one."""
        return [gpu for island in self.islands for gpu in island]

    def first(self, num_gpus: int) -> Topology:
        """Return the ways between the first GPUs alone, which a job of fewer GPUs gets."""
        paths = tuple(row[:num_gpus] for row in self.paths[:num_gpus])
        return Topology(paths=paths, nvlinks=tuple(row[:num_gpus] for row in self.nvlinks[:num_gpus]))

    def nvlinks_per_gpu(self, most: int) -> int:
        """Return the NVLinks in use of the GPU that uses the fewest, where a GPU has `most` of them.

        More than that in a row are those to a switch, which every pair shows anew: a switch with a link down shows one
        less in each cell.
        """
        return min(sum(row) if sum(row) <= most else min(cell for cell in row if cell) for row in self.nvlinks)

    @property
    def slowest_path(self) -> Path:
        """The slowest way between any two GPUs."""
        return max(max(row) for row in self.paths)


def parse_topology(text: str, source: str = "") -> Topology:
    """Read the matrix that `nvidia-smi topo -m` prints, after the list of `nvidia-smi -L` or without one.

    Errors name the `source`, where there is one.

    >>> parse_topology("GPU0 GPU1\\nGPU0 X NV4\\nGPU1 NV4 X").islands
    [[0, 1]]
    """
    try:
        return _parsed(plain_text(text), cut_gpus(text))
    except ValueError as error:
        raise UsageError(f"{source + ': ' if source else ''}topology: {error}", hint=HINT) from None


def _parsed(text: str, cut: list[int]) -> Topology:
    cells = _cells(text)
    for gpu in cut:
        # An instance has no way to another but through the host's memory, whatever links its GPU has.
        for a, b in [(gpu, b) for b in range(len(cells)) if gpu < len(cells) and gpu != b]:
            cells[a][b] = cells[b][a] = Path.SYS.name
    nvlinks = tuple(tuple(_num_nvlinks(cell) for cell in row) for row in cells)
    paths = tuple(tuple(_path(cell) for cell in row) for row in cells)
    size = range(len(paths))
    for a in size:
        for b in size:
            if (paths[a][b], nvlinks[a][b]) != (paths[b][a], nvlinks[b][a]) or (a == b) != (paths[a][b] is Path.SELF):
                raise ValueError(f"GPU{a} to GPU{b} must be as GPU{b} to GPU{a}, with X on the diagonal alone")
    return Topology(paths=paths, nvlinks=nvlinks)


def cut_gpus(text: str) -> list[int]:
    """Return the GPUs that are cut into MIG instances, where a list says so.

    >>> cut_gpus("GPU 0: A\\nGPU 1: A\\n  MIG 3g.40gb     Device  0: (UUID: MIG-1)")
    [1]
    """
    found, gpu = [], -1
    for number, is_instance in _LISTED.findall(text):
        if is_instance and gpu >= 0:
            found.append(gpu)
        elif number:
            gpu = int(number)
    return sorted(set(found))


def _cells(text: str) -> list[list[str]]:
    """Return the cells between GPUs; network cards and affinities stand behind them and are left out."""
    lines = [cells for line in text.splitlines() if (cells := line.split()) and _BEGIN.match(cells[0])]
    if not lines:
        raise ValueError("the matrix must have a line that begins with GPU0, but has none")
    header = _titles(lines[0])
    if len(header) > MAX_GPUS:
        raise ValueError(f"the matrix must have at most {MAX_GPUS} GPUs, but has {len(header)}")
    if header != [f"GPU{number}" for number in range(len(header))]:
        raise ValueError(
            f"the GPUs of the header must be GPU0 to GPU{len(header) - 1}, but are not, or not in that order"
        )
    rows = _links_alone(header, lines[1:])
    if [row[0] for row in rows] != header:
        raise ValueError(f"the matrix must have a line for each of its {len(header)} GPUs, but has {len(rows)}")
    found = [row[1 : len(header) + 1] for row in rows]
    short = next((row[0] for row, line in zip(rows, found, strict=True) if len(line) < len(header)), None)
    if short:
        raise ValueError(f"{short} must have {len(header)} cells, but its line is shorter")
    return found


def _titles(cells: list[str]) -> list[str]:
    """Return the GPUs that a header names."""
    match = _TITLES.match(" ".join(cells))
    return _GPU.findall(match[0]) if match else []


def _links_alone(header: list[str], lines: list[list[str]]) -> list[list[str]]:
    """Return the rows of the first matrix where all that follows is a matrix of peer access."""
    again = next((i for i, cells in enumerate(lines) if i and _titles(cells) == header and cells[1:2] != ["X"]), None)
    if again is None:
        return lines
    others = [cells[1 : len(header) + 1] for cells in lines[again:] if _titles(cells) != header or cells[1:2] == ["X"]]
    return lines[:again] if _PEER_ACCESS.issuperset(itertools.chain(*others)) else lines


def _num_nvlinks(cell: str) -> int:
    match = _NVLINK.fullmatch(cell)
    return int(match[1]) if match else 0


def _path(cell: str) -> Path:
    if _num_nvlinks(cell):
        return Path.NVLINK
    if cell not in _CELLS:
        raise ValueError(
            f"a cell must be X, NV1 to NV999 or one of PIX, PXB, PHB, NODE, SYS, but is {reprlib.repr(cell)}"
        )
    return _CELLS[cell]


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


def read_topology(path: pathlib.Path) -> Topology:
    """Read what `nvidia-smi topo -m` printed on one node, after `nvidia-smi -L` or without it."""
    try:
        text = read_regular(path, MAX_BYTES).decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise UsageError(f"--topology {str(path)!r} cannot be read ({error.strerror})", hint="check the path") from None
    return parse_topology(text, source=str(path))


def with_topology(cluster: ClusterSpec, topology: Topology, source: str) -> ClusterSpec:
    """Return a cluster whose nodes are linked as the matrix of one of them says."""
    node = topology.first(cluster.num_gpus)
    usual = {name: getattr(cluster, name) for name in ("gpus_per_node", "fast_domain", "fast_link", "node_link")}
    fields = links_of(find_gpu(cluster.gpu.name) or "", node, usual)
    counts = {name: fields[name] for name in ("gpus_per_node", "fast_domain")}
    refuse_counts(f"cluster {cluster.name!r} with nodes as {source}", num_gpus=cluster.num_gpus, **counts)
    return replace(cluster, name=f"{cluster.name} as {source}", **fields)


def links_of(gpu: str, topology: Topology, usual: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of ClusterSpec that a node's matrix decides, beside those that are usual for it."""
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
    """Say in a line how many GPUs tensor parallelism may span at most, `cluster.fast_domain`, and why."""
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
