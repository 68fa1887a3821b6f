"""Whole cores for each rank, so that no two ranks share the units of one."""

from __future__ import annotations

import os
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")


def whole_cores() -> list[set[int]]:
    """Return the cores that this process may use, each with all its hardware threads."""
    allowed = os.sched_getaffinity(0)
    cores: list[set[int]] = []
    for cpu in sorted(allowed):
        path = CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        siblings = _numbers(path.read_text()) & allowed if path.exists() else {cpu}
        if siblings not in cores:
            cores.append(siblings)
    return cores


def pin(rank: int, num_ranks: int) -> None:
    """Keep this process and the threads that it will start on its share of the cores, neighbours that are."""
    cores = whole_cores()
    share = len(cores) // num_ranks
    os.sched_setaffinity(0, set().union(*cores[rank * share : (rank + 1) * share]))


def _numbers(text: str) -> set[int]:
    """Read a list of the kernel's.

    >>> sorted(_numbers("0-1,8"))
    [0, 1, 8]
    """
    ends = [[int(word) for word in part.split("-")] for part in text.strip().split(",")]
    return {number for first, *last in ends for number in range(first, (last or [first])[0] + 1)}
