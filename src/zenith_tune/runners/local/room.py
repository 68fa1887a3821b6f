"""The room that this machine has for trials side by side: a set of GPUs and a port for each."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from zenith_tune.describe.machine import listed_gpus, nvidia_smi
from zenith_tune.describe.topology import Topology, parse_topology
from zenith_tune.errors import UsageError
from zenith_tune.runners.launch.own_command import GPUS, PORT, own_command, own_variables
from zenith_tune.study.resources import Resources


def gpu_sets(gpus: Sequence[str], num_per_set: int, topology: Topology | None = None) -> list[tuple[str, ...]]:
    """Cut `gpus` into as many sets of `num_per_set` as there are; `topology` is in the order of `gpus`.

    A set lies inside one island of NVLinks where one has room for it. What islands have left over makes further sets,
    the nearest GPUs together; and a set that is larger than any island is made of whole islands first.
    """
    islands = topology.islands if topology is not None else [list(range(len(gpus)))]
    sets: list[list[int]] = []
    left: list[int] = []
    for island in islands:
        whole = len(island) - len(island) % num_per_set
        sets += [island[at : at + num_per_set] for at in range(0, whole, num_per_set)]
        left += island[whole:]
    while len(left) >= num_per_set:
        # The first that is left with those that are nearest to it.
        paths = topology.paths[left[0]] if topology is not None else [0] * len(gpus)
        sets.append(sorted(left, key=lambda gpu: (paths[gpu], gpu))[:num_per_set])
        left = [gpu for gpu in left if gpu not in sets[-1]]
    return [tuple(gpus[gpu] for gpu in sorted(each)) for each in sorted(sets)]


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleGpus:
    """The GPUs that CUDA_VISIBLE_DEVICES names, or else all that nvidia-smi lists."""

    names: tuple[str, ...]
    topology: Topology | None = None
    """The links between them, in their order; None where they are not known."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> VisibleGpus:
        """Look at the variable first, as CUDA does; a machine without nvidia-smi has no GPUs."""
        named = named_gpus(environment)
        if named == ():
            return cls(names=())
        try:
            num_gpus = len(listed_gpus(nvidia_smi("-L", timeout_s=_TIMEOUT_S)))
        except UsageError:
            return cls(names=named or ())
        names = tuple(str(number) for number in range(num_gpus)) if named is None else named
        return cls(names=names, topology=_topology(names))


def named_gpus(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the GPUs that CUDA takes from the variable: those in front of the first that names none; None: all."""
    if GPUS not in environment:
        return None
    names: list[str] = []
    for part in environment[GPUS].split(","):
        name = part.strip()
        if not name or name.startswith("-"):
            break
        names.append(name)
    return tuple(names)


def _topology(names: tuple[str, ...]) -> Topology | None:
    """Return the links between these GPUs; None where they are not named by their numbers."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """What one trial has for itself; a trial that runs alone has all, and nothing of its command changes."""

    gpus: tuple[str, ...] = ()
    port: int | None = None

    @property
    def place(self) -> str:
        """Where the trial runs, for people."""
        return f"GPU {','.join(self.gpus)}" if self.gpus else ""

    def command(self, command: str) -> str:
        return own_command(command, gpus=",".join(self.gpus), port="" if self.port is None else str(self.port))

    def environment(self) -> dict[str, str]:
        """Return the variables that keep the trial to what is its own."""
        # By their numbers GPUs are meant as nvidia-smi counts them, which CUDA itself does only when asked to.
        gpus = {GPUS: ",".join(self.gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if self.gpus else {}
        return gpus if self.port is None else {**gpus, PORT: str(self.port)}


T = TypeVar("T")


class SlotPool(Generic[T]):
    """Slots, none handed to two trials at once."""

    def __init__(self, slots: Sequence[T]) -> None:
        self._free = list(slots)
        self._changed = threading.Condition()

    def take(self, prefers: Callable[[T], bool] = lambda slot: True) -> T:
        """Return a slot, waiting for one if need be; one that is not preferred only where no other is free."""
        with self._changed:
            self._changed.wait_for(lambda: self._free)
            slot = next(filter(prefers, self._free), self._free[0])
            self._free.remove(slot)
            return slot

    def give_back(self, slot: T) -> None:
        with self._changed:
            self._free.append(slot)
            self._changed.notify()


class LocalRoom:
    """The room of this machine, in slots; no GPU and no port is handed to two trials at once."""

    def __init__(self, sets: list[tuple[str, ...]], num_slots: int) -> None:
        self.num_slots = num_slots
        self._gpu_sets = SlotPool(sets) if sets else None
        self._ports: set[int] = set()
        self._taking_port = threading.Lock()

    @classmethod
    def of(cls, resources: Resources, parallel: int | None, environment: Mapping[str, str]) -> tuple[LocalRoom, str]:
        """Return the room for trials with such needs, and what the user should know of it.

        `parallel` is how many the user asked for, None for as many as there are GPUs for.
        """
        if parallel == 1:
            return cls([], 1), ""
        if resources.nodes > 1:
            needs = resources.describe()
            hint = "give --hostfile or --slurm, or leave --parallel out"
            raise UsageError(f"trials side by side must fit on one machine, but each needs {needs}", hint=hint)
        gpus, num = VisibleGpus.of(environment), resources.gpus_per_node
        if not gpus.names:
            note = "no GPU was found on this machine"
            return (cls([], 1), f"{note}: trials run one at a time") if parallel is None else (cls([], parallel), "")
        if num is None:
            problem = "trials side by side must say how many GPUs each needs, but the command does not"
            raise UsageError(problem, hint="give --gpus-per-trial 2, say")
        sets = gpu_sets(gpus.names, num, gpus.topology)
        if not sets:
            problem = f"a trial needs {num} GPUs, but this machine has {len(gpus.names)}"
            raise UsageError(problem, hint="give it fewer, or --slurm, --hostfile or --ray-address for more machines")
        if parallel is not None and len(sets) < parallel:
            problem = f"{parallel} trials of {num} GPUs need {parallel * num}, but this machine has {len(gpus.names)}"
            raise UsageError(problem, hint="give --parallel auto, or fewer of either")
        chosen = sets[:parallel]
        shown = "  ".join(",".join(each) for each in chosen)
        side = f"{len(chosen)} trials run side by side" if len(chosen) > 1 else "one trial runs at a time"
        return cls(chosen, len(chosen)), f"{side}, on GPU{'s' * (len(chosen) * num > 1)} {shown}"

    @property
    def own_variables(self) -> dict[str, str]:
        """The variables that the room sets for a trial, each with what it stands for."""
        own = own_variables(has_gpus=self._gpu_sets is not None)
        return {name: what for name, what in own.items() if name == GPUS or self.num_slots > 1}

    def take(self) -> Slot:
        """Return a slot, waiting for one if need be."""
        gpus = self._gpu_sets.take() if self._gpu_sets is not None else ()
        return Slot(gpus=gpus, port=self._new_port() if self.num_slots > 1 else None)

    def _new_port(self) -> int:
        """Return a free port that no trial was given before."""
        with self._taking_port:
            while (port := free_port()) in self._ports:
                pass
            self._ports.add(port)
            return port

    def give_back(self, slot: Slot) -> None:
        if self._gpu_sets is not None and slot.gpus:
            self._gpu_sets.give_back(slot.gpus)
