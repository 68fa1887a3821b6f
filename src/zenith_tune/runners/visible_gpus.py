"""The GPUs of this machine that trials may use, and how they are joined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zenith_tune.describe.local_cluster import nvidia_smi
from zenith_tune.describe.machine import listed_gpus
from zenith_tune.describe.topology import Topology, parse_topology
from zenith_tune.errors import UsageError
from zenith_tune.runners.launch.own_command import GPUS

_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleGpus:
    """Hold what CUDA_VISIBLE_DEVICES names, or else all GPUs that nvidia-smi lists."""

    names: tuple[str, ...]
    topology: Topology | None = None
    """The ways between them, in their order; None where nobody tells."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> VisibleGpus:
        """Look at the variable first, as CUDA does; a machine without nvidia-smi has no GPUs."""
        given = environment.get(GPUS)
        named = None if given is None else _before_a_gap(given)
        if named == ():
            return cls(names=())
        try:
            num_gpus = len(listed_gpus(nvidia_smi("-L", timeout_s=_TIMEOUT_S)))
        except UsageError:
            return cls(names=named or ())
        names = tuple(str(number) for number in range(num_gpus)) if named is None else named
        return cls(names=names, topology=_topology(names))


def _before_a_gap(text: str) -> tuple[str, ...]:
    """Return the GPUs that CUDA takes from the variable: those in front of the first that names none."""
    names: list[str] = []
    for part in text.split(","):
        name = part.strip()
        if not name or name.startswith("-"):
            break
        names.append(name)
    return tuple(names)


def _topology(names: tuple[str, ...]) -> Topology | None:
    """Return the ways between these GPUs; None where they are named by something else than their numbers."""
    if len(names) < 2 or not all(name.isdecimal() for name in names):
        return None
    try:
        whole = parse_topology(nvidia_smi("topo", "-m", timeout_s=_TIMEOUT_S))
    except UsageError:
        return None
    numbers = [int(name) for name in names]
    if max(numbers) >= whole.num_gpus:
        return None
    return Topology(
        paths=tuple(tuple(whole.paths[a][b] for b in numbers) for a in numbers),
        nvlinks=tuple(tuple(whole.nvlinks[a][b] for b in numbers) for a in numbers),
    )
