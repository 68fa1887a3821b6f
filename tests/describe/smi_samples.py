"""What `nvidia-smi -L` and `nvidia-smi topo -m` print on machines of different kinds."""

from __future__ import annotations

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


def listed(name: str, count: int) -> str:
    """Return what `nvidia-smi -L` prints."""
    lines = [f"GPU {i}: {name} (UUID: GPU-{i:08x}-0000-0000-0000-000000000000)\n" for i in range(count)]
    return "".join(lines)


def matrix(cells: list[list[str]], *, colours: bool = False, nics: int = 0) -> str:
    """Return what `nvidia-smi topo -m` prints for these cells between GPUs."""
    gpus = [f"GPU{i}" for i in range(len(cells))]
    cards = [f"NIC{i}" for i in range(nics)]
    titles = [*gpus, *cards, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]
    # Drivers since 2022 underline the header.
    header = "\t\x1b[4m" + "\t".join(titles) + "\x1b[0m" if colours else "\t" + "\t".join(titles)
    rows = ["\t".join([gpus[i], *row, *["PXB"] * nics, "0-31,64-95", "0", "N/A"]) for i, row in enumerate(cells)]
    rows += ["\t".join([card, *["PXB"] * (len(gpus) + nics)]) for card in cards]
    names = "\nNIC Legend:\n\n" + "".join(f"  {card}: mlx5_{i}\n" for i, card in enumerate(cards)) if nics else ""
    return "\n".join([header, *rows]) + "\n" + LEGEND + names


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
