"""How the GPUs of one machine are linked, as `nvidia-smi topo -m` prints it."""

from __future__ import annotations

import enum
import itertools
import math
import re
import reprlib
from dataclasses import dataclass

from zenith_tune.errors import UsageError

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


def parse_topology(text: str) -> Topology:
    """Read the matrix that `nvidia-smi topo -m` prints, after the list of `nvidia-smi -L` or without one.

    >>> parse_topology("GPU0 GPU1\\nGPU0 X NV4\\nGPU1 NV4 X").islands
    [[0, 1]]
    """
    cells = _cells(plain_text(text))
    for gpu in cut_gpus(text):
        # An instance has no way to another but through the host's memory, whatever links its GPU has.
        for a, b in [(gpu, b) for b in range(len(cells)) if gpu < len(cells) and gpu != b]:
            cells[a][b] = cells[b][a] = Path.SYS.name
    nvlinks = tuple(tuple(_num_nvlinks(cell) for cell in row) for row in cells)
    paths = tuple(tuple(_path(cell) for cell in row) for row in cells)
    size = range(len(paths))
    for a in size:
        for b in size:
            if (paths[a][b], nvlinks[a][b]) != (paths[b][a], nvlinks[b][a]) or (a == b) != (paths[a][b] is Path.SELF):
                raise _refusal(f"GPU{a} to GPU{b} must be as GPU{b} to GPU{a}, and X on the diagonal alone, but is not")
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
    lines = [words for line in text.splitlines() if (words := line.split()) and _BEGIN.match(words[0])]
    if not lines:
        raise _refusal("the matrix must have a line that begins with GPU0, but has none")
    header = _titles(lines[0])
    if len(header) > MAX_GPUS:
        raise _refusal(f"the matrix must have at most {MAX_GPUS} GPUs, but has {len(header)}")
    if header != [f"GPU{number}" for number in range(len(header))]:
        raise _refusal(
            f"the GPUs of the header must be GPU0 to GPU{len(header) - 1}, but are not, or not in that order"
        )
    rows = _links_alone(header, lines[1:])
    if [row[0] for row in rows] != header:
        raise _refusal(f"the matrix must have a line for each of its {len(header)} GPUs, but has {len(rows)}")
    cells = [row[1 : len(header) + 1] for row in rows]
    short = next((row[0] for row, line in zip(rows, cells, strict=True) if len(line) < len(header)), None)
    if short:
        raise _refusal(f"{short} must have {len(header)} cells, but its line is shorter")
    return cells


def _titles(words: list[str]) -> list[str]:
    """Return the GPUs that a header names."""
    match = _TITLES.match(" ".join(words))
    return _GPU.findall(match[0]) if match else []


def _links_alone(header: list[str], lines: list[list[str]]) -> list[list[str]]:
    """Return the rows of the first matrix where all that follows is a matrix of peer access."""
    again = next((i for i, words in enumerate(lines) if i and _titles(words) == header and words[1:2] != ["X"]), None)
    if again is None:
        return lines
    others = [words[1 : len(header) + 1] for words in lines[again:] if _titles(words) != header or words[1:2] == ["X"]]
    return lines[:again] if _PEER_ACCESS.issuperset(itertools.chain(*others)) else lines


def _num_nvlinks(cell: str) -> int:
    match = _NVLINK.fullmatch(cell)
    return int(match[1]) if match else 0


def _path(cell: str) -> Path:
    if _num_nvlinks(cell):
        return Path.NVLINK
    if cell not in _CELLS:
        raise _refusal(
            f"a cell must be X, NV1 to NV999 or one of PIX, PXB, PHB, NODE, SYS, but is {reprlib.repr(cell)}"
        )
    return _CELLS[cell]


def _refusal(problem: str) -> UsageError:
    return UsageError(f"topology: {problem}", hint=HINT)
