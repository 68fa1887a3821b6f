"""What messages and sums between the ranks of a run cost, tried before it trains."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from zenith_tune.mimo.comm.bridge import Channel
from zenith_tune.mimo.comm.topology import Topology
from zenith_tune.mimo.measured_step import LinkTime

SMALL, LARGE = 64, 65536
"""Numbers of a message: one that shows the latency, one the bandwidth."""
NUM_ROUNDS = 8


def probe_links(topology: Topology, device: str) -> tuple[tuple[LinkTime, ...], tuple[LinkTime, ...]]:
    """Return the times of messages and of sums; a collective of the whole world.

    A message is one between two ranks with its shape before it, as stages send them; a sum is one over so many ranks.
    """
    world_size = dist.get_world_size()
    if world_size == 1:
        return (), ()
    sizes = [size for size in (2, 4, 8) if size < world_size] + [world_size]
    messages, sums = [], []
    for num_numbers in (SMALL, LARGE):
        tensor = torch.zeros(num_numbers, device=device)
        num_bytes = float(tensor.numel() * tensor.element_size())
        messages.append(LinkTime(2, num_bytes, _message_s(topology, tensor, device)))
        sums += [LinkTime(size, num_bytes, _sum_s(topology, tensor, size)) for size in sizes]
    return tuple(messages), tuple(sums)


def _message_s(topology: Topology, tensor: torch.Tensor, device: str) -> float:
    """Return half of the time of a message there and back between the first two ranks."""
    channel = Channel(topology.forward_group, device=device, dtype=tensor.dtype)

    def there_and_back() -> None:
        if topology.rank == 0:
            channel.send(tensor, 1, with_shape=True)
            channel.receive(1)
        elif topology.rank == 1:
            channel.receive(0)
            channel.send(tensor, 0, with_shape=True)

    seconds = _timed(there_and_back) / 2
    channel.flush()
    return _told_to_all(seconds, device)


def _sum_s(topology: Topology, tensor: torch.Tensor, size: int) -> float:
    group: Any = dist.new_group(list(range(size)), timeout=topology.timeout, backend=topology.backend)
    seconds = 0.0
    if topology.rank < size:
        seconds = _timed(lambda: dist.all_reduce(tensor, group=group))
        dist.destroy_process_group(group)
    return _told_to_all(seconds, str(tensor.device))


def _told_to_all(seconds: float, device: str) -> float:
    """Return what the ranks that took part have measured, on every rank."""
    longest = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return float(longest)


def _timed(work: Callable[[], object]) -> float:
    times = []
    for _ in range(NUM_ROUNDS):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[2:])
