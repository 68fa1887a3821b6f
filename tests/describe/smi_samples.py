"""What `nvidia-smi -L` and `nvidia-smi topo -m` print on machines of different kinds."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


OLD_LEGEND = ("SYS  =", "SOC  =")
COLUMNS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
NEARNESS = ("PIX", "PXB", "PHB", "NODE")
CPUS = ("0-31,64-95", "32-63,96-127")


@dataclass(frozen=True, kw_only=True)
class Card:
    """A network card, and the GPUs that it is nearer to than to the rest."""

    name: str
    near: dict[str, list[int]]

    def way(self, gpu: int, far: str) -> str:
        return next((way for way, gpus in self.near.items() if gpu in gpus), far)

    def way_to(self, other: Card, far: str) -> str:
        """Return PIX for two behind one switch, or the longer of the ways to the GPUs that both are near."""
        if self.near and self.near == other.near:
            return "PIX"
        both = {gpu for gpus in self.near.values() for gpu in gpus} & {g for gpus in other.near.values() for g in gpus}
        ways = {way for card in (self, other) for way, gpus in card.near.items() if both & set(gpus)}
        return max(ways, key=NEARNESS.index) if ways else far


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where one GPU is: the cores next to it, their NUMA node, and its own where its memory is one."""

    cpus: str = CPUS[0]
    numa: str = "0"
    gpu_numa: str = "N/A"

    def cell(self, column: str) -> str:
        # The tool puts an empty cell before the last column.
        return {"CPU Affinity": self.cpus, "NUMA Affinity": self.numa, "GPU NUMA ID": f"\t{self.gpu_numa}"}[column]


def listed(name: str, count: int, instances: tuple[str, ...] = ()) -> str:
    """Return what `nvidia-smi -L` prints, each GPU cut into these MIG instances."""
    cut = [f"  MIG {kind:12}Device {i:2}: (UUID: MIG-{i:08x})\n" for i, kind in enumerate(instances)]
    lines = [[f"GPU {i}: {name} (UUID: GPU-{i:08x}-0000-0000-0000-000000000000)\n", *cut] for i in range(count)]
    return "".join(itertools.chain(*lines))


def link_status(name: str, active: Sequence[int], links: int = 18, rate: str = "26.562 GB/s") -> str:
    """Return what `nvidia-smi nvlink -s` prints where so many links of each GPU are up."""
    found = []
    for gpu, up in enumerate(active):
        states = [rate] * up + ["<inactive>"] * (links - up)
        shown = [f"\t Link {number}: {state}\n" for number, state in enumerate(states)]
        none = ["NVML: Unable to retrieve NVLink information as all links are inActive\n"]
        found += [f"GPU {gpu}: {name} (UUID: GPU-{gpu:08x}-0000-0000-0000-000000000000)\n", *(shown if up else none)]
    return "".join(found)


def matrix(
    cells: list[list[str]],
    *,
    colours: bool = False,
    nics: int = 0,
    cards: Sequence[Card] | None = None,
    places: Sequence[Place] | None = None,
    columns: tuple[str, ...] = COLUMNS,
    card_links: Mapping[str, str] | None = None,
    far: str = "SYS",
    card_end: str = "",
) -> str:
    """Return what `nvidia-smi topo -m` prints for these cells between GPUs, on two sockets by default."""
    gpus = [f"GPU{i}" for i in range(len(cells))]
    cards = [_usual_card(i, len(cells)) for i in range(nics)] if cards is None else cards
    places = [_usual_place(i, len(cells)) for i in range(len(cells))] if places is None else places
    titles = "\t".join([*gpus, *(card.name for card in cards), *columns])
    # Drivers since 2022 underline the header.
    header = f"\t\x1b[4m{titles}\x1b[0m" if colours else f"\t{titles}"
    rows = []
    for i, row in enumerate(cells):
        to_cards = [card.way(i, far) for card in cards]
        rows.append("\t".join([gpus[i], *row, *to_cards, *(places[i].cell(column) for column in columns)]))
    for a, card in enumerate(cards):
        to_cards = [" X " if a == b else _between(cards, a, b, far, card_links or {}) for b in range(len(cards))]
        rows.append("\t".join([card.name, *(card.way(i, far) for i in range(len(gpus))), *to_cards]) + card_end)
    numbered = [f"  {card.name}: mlx5_{i}\n" for i, card in enumerate(cards) if card.name.startswith("NIC")]
    names = "\nNIC Legend:\n\n" + "".join(numbered) if numbered else ""
    return "\n".join([header, *rows]) + "\n" + (LEGEND.replace(*OLD_LEGEND) if far == "SOC" else LEGEND) + names


def _between(cards: Sequence[Card], a: int, b: int, far: str, reported: Mapping[str, str]) -> str:
    return reported.get(f"{min(a, b)}-{max(a, b)}") or cards[a].way_to(cards[b], far)


def _socket(gpu: int, num_gpus: int) -> int:
    return int(num_gpus > 2 and gpu >= num_gpus // 2)


def _usual_place(gpu: int, num_gpus: int) -> Place:
    socket = _socket(gpu, num_gpus)
    return Place(cpus=CPUS[socket], numa=str(socket))


def _usual_card(number: int, num_gpus: int) -> Card:
    """Return a card behind the switch of the GPU of its number; the others of its socket are further away."""
    own = number % num_gpus
    others = [gpu for gpu in range(num_gpus) if gpu != own and _socket(gpu, num_gpus) == _socket(own, num_gpus)]
    return Card(name=f"NIC{number}", near={"PIX": [own], "NODE": others})


def reported_machines() -> dict[str, Machine]:
    """Return the machines that their owners reported, by name."""
    return tomllib.loads((Path(__file__).parent / "topologies" / "reported.toml").read_text(encoding="utf-8"))


def reported_cards(machine: Machine) -> list[Card]:
    """Return the network cards of a reported machine."""
    return [Card(name=card["name"], near={k: v for k, v in card.items() if k != "name"}) for card in machine["cards"]]


def reported_places(machine: Machine) -> list[Place]:
    """Return where each GPU of a reported machine is."""
    places = [_usual_place(gpu, machine["num_gpus"]) for gpu in range(machine["num_gpus"])]
    for socket in machine.get("sockets", ()):
        ids = socket.get("gpu_numa", ["N/A"] * len(socket["gpus"]))
        for gpu, own in zip(socket["gpus"], ids, strict=True):
            places[gpu] = Place(cpus=socket.get("cpus", CPUS[0]), numa=socket["numa"], gpu_numa=own)
    return places


def reported_matrix(machine: Machine) -> str:
    """Return what nvidia-smi said on a reported machine, in the form in which it was reported."""
    cells = uniform(machine["num_gpus"], machine["others"])
    for pair, link in machine["links"].items():
        a, b = map(int, pair.split("-"))
        cells[a][b] = cells[b][a] = link
    text = matrix(
        cells,
        cards=reported_cards(machine),
        places=reported_places(machine),
        columns=tuple(machine["columns"]),
        card_links=machine.get("card_links"),
        far="SOC" if machine["others"] == "SOC" else "SYS",
        card_end=machine.get("card_end", ""),
    )
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
