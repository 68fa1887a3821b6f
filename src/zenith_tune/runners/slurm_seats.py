"""The places in an allocation, handed out by the tuner itself where a step around it holds the whole of it."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeat:
    """Hold the nodes of one trial's step, and which of the step's GPUs on each are the trial's."""

    nodes: tuple[str, ...]
    first_gpu: int = 0


class SlurmSeats:
    """Hand out seats, no part of a node to two trials at once.

    >>> seats = SlurmSeats(("n1", "n2", "n3"), nodes_per_seat=2, seats_per_node=2, gpus_per_seat=4)
    >>> seats.num_seats, seats.take().first_gpu, seats.take().first_gpu
    (2, 0, 4)
    """

    def __init__(
        self, nodes: tuple[str, ...], *, nodes_per_seat: int, seats_per_node: int, gpus_per_seat: int = 0
    ) -> None:
        starts = range(0, len(nodes) - nodes_per_seat + 1, nodes_per_seat)
        groups = [nodes[start : start + nodes_per_seat] for start in starts]
        self._free = [
            StepSeat(nodes=group, first_gpu=index * gpus_per_seat)
            for index in range(seats_per_node)
            for group in groups
        ]
        self.num_seats = len(self._free)
        self._changed = threading.Condition()

    def take(self, avoid: Collection[str] = ()) -> StepSeat:
        """Return a seat, waiting for one if need be; one on nodes to avoid only where no other is free."""
        with self._changed:
            self._changed.wait_for(lambda: self._free)
            seat = next((each for each in self._free if not set(avoid) & set(each.nodes)), self._free[0])
            self._free.remove(seat)
            return seat

    def give_back(self, seat: StepSeat) -> None:
        """Take a seat back."""
        with self._changed:
            self._free.insert(0, seat)
            self._changed.notify()
