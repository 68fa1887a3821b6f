"""The GPUs of a machine in disjoint sets, each as well joined as the machine allows."""

from __future__ import annotations

from collections.abc import Sequence

from zenith_tune.describe.topology import Topology


def gpu_sets(gpus: Sequence[str], num_per_set: int, topology: Topology | None = None) -> list[tuple[str, ...]]:
    """Cut `gpus` into as many sets of `num_per_set` as there are; `topology` is in the order of `gpus`.

    A set lies inside one island of NVLinks where one has room for it. What islands have left over makes further sets,
    the nearest GPUs together; and a set that is larger than any island is made of whole islands first.

    >>> gpu_sets(["0", "1", "2", "3", "4"], 2)
    [('0', '1'), ('2', '3')]
    """
    islands = topology.islands if topology is not None else [list(range(len(gpus)))]
    sets: list[list[int]] = []
    left: list[int] = []
    for island in islands:
        whole = len(island) - len(island) % num_per_set
        sets += [island[at : at + num_per_set] for at in range(0, whole, num_per_set)]
        left += island[whole:]
    while len(left) >= num_per_set:
        sets.append(_nearest(left, num_per_set, topology))
        left = [gpu for gpu in left if gpu not in sets[-1]]
    return [tuple(gpus[gpu] for gpu in sorted(each)) for each in sorted(sets)]


def _nearest(left: Sequence[int], num: int, topology: Topology | None) -> list[int]:
    """Return the first GPU that is left with those that are nearest to it."""
    first = left[0]
    if topology is None:
        return list(left[:num])
    return sorted(left, key=lambda gpu: (topology.paths[first][gpu], gpu))[:num]
