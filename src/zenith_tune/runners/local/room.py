"""The room that this machine has for trials side by side: a set of GPUs and a port for each."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from zenith_tune.errors import UsageError
from zenith_tune.runners.gpu_sets import gpu_sets
from zenith_tune.runners.launch.own_command import GPUS, PORT, own_command, own_variables
from zenith_tune.runners.ports import Ports
from zenith_tune.runners.visible_gpus import VisibleGpus
from zenith_tune.study.resources import Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Hold what one trial has for itself; a trial that runs alone has all, and nothing of its command changes."""

    gpus: tuple[str, ...] = ()
    port: int | None = None

    @property
    def place(self) -> str:
        """Where the trial runs, for people."""
        return f"GPU {','.join(self.gpus)}" if self.gpus else ""

    def command(self, command: str) -> str:
        """Return the command as it runs here."""
        return own_command(command, gpus=",".join(self.gpus), port="" if self.port is None else str(self.port))

    def environment(self) -> dict[str, str]:
        """Return the variables that keep the trial to what is its own."""
        # By their numbers GPUs are meant as nvidia-smi counts them, which CUDA itself does only when told.
        gpus = {GPUS: ",".join(self.gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if self.gpus else {}
        return gpus if self.port is None else {**gpus, PORT: str(self.port)}


class LocalRoom:
    """Hand out seats, no GPU and no port to two trials at once."""

    def __init__(self, sets: list[tuple[str, ...]], num_seats: int) -> None:
        self.num_seats = num_seats
        self._sets = list(sets)
        self._has_gpus = bool(sets)
        self._ports = Ports()
        self._changed = threading.Condition()

    @classmethod
    def of(cls, resources: Resources, parallel: int | None, environment: Mapping[str, str]) -> tuple[LocalRoom, str]:
        """Return the room for trials with such needs, and what the user should know of it.

        `parallel` is how many the user asked for, None for as many as there are GPUs for.
        """
        if parallel == 1:
            return cls([], 1), ""
        if resources.nodes > 1:
            needs = resources.describe()
            cure = "give --hostfile or --slurm, or leave --parallel out"
            raise UsageError(f"trials side by side must fit on one machine, but each needs {needs}: {cure}")
        gpus, num = VisibleGpus.of(environment), resources.gpus_per_node
        if not gpus.names:
            note = "no GPU was found on this machine"
            return (cls([], 1), f"{note}: trials run one at a time") if parallel is None else (cls([], parallel), "")
        if num is None:
            law = "trials side by side must say how many GPUs each needs, but the command does not tell"
            raise UsageError(f"{law}: give --gpus-per-trial 2, say")
        sets = gpu_sets(gpus.names, num, gpus.topology)
        if len(sets) < (parallel or 1):
            if not sets:
                law = f"a trial needs {num} GPUs, but this machine has {len(gpus.names)}"
                raise UsageError(f"{law}: give it fewer, or --slurm, --hostfile or --ray-address for more machines")
            law = (
                f"{parallel} trials of {num} GPUs need {(parallel or 1) * num}, but this machine has {len(gpus.names)}"
            )
            raise UsageError(f"{law}: give --parallel auto, or fewer of either")
        chosen = sets if parallel is None else sets[:parallel]
        shown = "  ".join(",".join(each) for each in chosen)
        side = f"{len(chosen)} trials run side by side" if len(chosen) > 1 else "one trial runs at a time"
        return cls(chosen, len(chosen)), f"{side}, on GPU{'s' * (len(chosen) * num > 1)} {shown}"

    @property
    def own_variables(self) -> dict[str, str]:
        """Return the variables that the room sets for a trial, each with what it stands for."""
        own = own_variables(has_gpus=self._has_gpus)
        return {name: what for name, what in own.items() if name == GPUS or self.num_seats > 1}

    def take(self) -> Seat:
        """Return a seat, waiting for one if need be."""
        with self._changed:
            self._changed.wait_for(lambda: self._sets or not self._has_gpus)
            gpus = self._sets.pop(0) if self._has_gpus else ()
        return Seat(gpus=gpus, port=self._ports.take() if self.num_seats > 1 else None)

    def give_back(self, seat: Seat) -> None:
        """Take a seat back."""
        if seat.port is not None:
            self._ports.give_back(seat.port)
        with self._changed:
            if seat.gpus:
                self._sets.append(seat.gpus)
            self._changed.notify()
