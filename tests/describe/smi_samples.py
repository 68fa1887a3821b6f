"""What `nvidia-smi -L` and `nvidia-smi topo -m` print on machines of different kinds."""

from __future__ import annotations

import itertools
import tomllib
from pathlib import Path
from typing import Any

Machine = dict[str, Any]

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""


COLUMNS = {"CPU Affinity": "0-31,64-95", "NUMA Affinity": "0", "GPU NUMA ID": "\tN/A"}


def listed(name: str, count: int, instances: tuple[str, ...] = ()) -> str:
    """Return what `nvidia-smi -L` prints, each GPU cut into these MIG instances."""
    cut = [f"  MIG {kind:12}Device {i:2}: (UUID: MIG-{i:08x})\n" for i, kind in enumerate(instances)]
    lines = [[f"GPU {i}: {name} (UUID: GPU-{i:08x}-0000-0000-0000-000000000000)\n", *cut] for i in range(count)]
    return "".join(itertools.chain(*lines))


def matrix(
    cells: list[list[str]],
    *,
    colours: bool = False,
    nics: int = 0,
    cards: tuple[str, ...] | None = None,
    columns: tuple[str, ...] = tuple(COLUMNS),
) -> str:
    """Return what `nvidia-smi topo -m` prints for these cells between GPUs."""
    gpus = [f"GPU{i}" for i in range(len(cells))]
    cards = tuple(f"NIC{i}" for i in range(nics)) if cards is None else cards
    titles = "\t".join([*gpus, *cards, *columns])
    # Drivers since 2022 underline the header.
    header = f"\t\x1b[4m{titles}\x1b[0m" if colours else f"\t{titles}"
    ends = ["PXB"] * len(cards) + [COLUMNS[column] for column in columns]
    rows = ["\t".join([gpus[i], *row, *ends]) for i, row in enumerate(cells)]
    rows += ["\t".join([card, *["PXB"] * (len(gpus) + len(cards))]) for card in cards]
    numbered = [f"  {card}: mlx5_{i}\n" for i, card in enumerate(cards) if card.startswith("NIC")]
    names = "\nNIC Legend:\n\n" + "".join(numbered) if numbered else ""
    return "\n".join([header, *rows]) + "\n" + LEGEND + names


def reported_machines() -> dict[str, Machine]:
    """Return the machines that their owners reported, by name."""
    return tomllib.loads((Path(__file__).parent / "topologies" / "reported.toml").read_text(encoding="utf-8"))


def reported_matrix(machine: Machine) -> str:
    """Return what nvidia-smi said on a reported machine, in the form in which it was reported."""
    cells = uniform(machine["num_gpus"], machine["others"])
    for pair, link in machine["links"].items():
        a, b = map(int, pair.split("-"))
        cells[a][b] = cells[b][a] = link
    text = matrix(cells, cards=tuple(machine["cards"]), columns=tuple(machine["columns"]))
    if machine.get("is_run_together"):
        header, line_end, rest = text.partition("\n")
        text = "\t    " + header.replace("\t", "") + line_end + rest
    if "peer_access" in machine:
        text += "\n" + matrix(uniform(machine["num_gpus"], machine["peer_access"]), cards=(), columns=())
    if "listed" in machine:
        text = listed(machine["listed"], machine["num_gpus"], tuple(machine["instances"])) + text
    if machine.get("has_spaces"):  # a terminal's
        text = text.expandtabs(8)
    return "".join(" " * machine.get("indent", 0) + line for line in text.splitlines(keepends=True))


def uniform(count: int, link: str) -> list[list[str]]:
    """Return cells in which every two GPUs have the same link."""
    return [[" X " if a == b else link for b in range(count)] for a in range(count)]


def islands(sizes: list[int], inside: str, between: str) -> list[list[str]]:
    """Return cells of GPUs in groups."""
    group = [number for number, size in enumerate(sizes) for _ in range(size)]
    return [
        [" X " if a == b else inside if group[a] == group[b] else between for b in range(len(group))]
        for a in range(len(group))
    ]


DGX_1 = [
    ["X", "NV1", "NV1", "NV2", "NV2", "SYS", "SYS", "SYS"],
    ["NV1", "X", "NV2", "NV1", "SYS", "NV2", "SYS", "SYS"],
    ["NV1", "NV2", "X", "NV2", "SYS", "SYS", "NV1", "SYS"],
    ["NV2", "NV1", "NV2", "X", "SYS", "SYS", "SYS", "NV1"],
    ["NV2", "SYS", "SYS", "SYS", "X", "NV1", "NV1", "NV2"],
    ["SYS", "NV2", "SYS", "SYS", "NV1", "X", "NV2", "NV1"],
    ["SYS", "SYS", "NV1", "SYS", "NV1", "NV2", "X", "NV2"],
    ["SYS", "SYS", "SYS", "NV1", "NV2", "NV1", "NV2", "X"],
]
"""Eight V100 with six NVLinks each, no switch."""
