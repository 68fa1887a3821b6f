"""The time in which ranks exchange a message, with the fastest of NCCL's algorithms and protocols.

Legend: n ranks in a group, k of them in one fast domain, d = n/k domains; V bytes that each rank ends up with or starts
from; FAST and SLOW the links' rates times the share of them that a large message reaches (the fitted efficiencies).

Each algorithm takes `waits + bytes / bandwidth` and the fastest counts, as in NCCL's own tuner (NVIDIA/nccl, commit
5067397c of 2026-06-11, src/graph/tuning.cc), whose base latencies, latencies of a step and shares of the bandwidth the
constants began as. They were then fitted to what people published of nccl-tests: rings, trees and switches to all rows
of collectives from 512 KiB up, on 2026-11-16; exchanges and sends by hand.
benchmarks/results/nccl-tables.csv has those whose address is known, none of exchanges among them;
tests/estimates/test_nccl_tables.py compares them.

A ring inside a domain passes (n-1)/n * V over every link in n-1 steps (Thakur et al., "Optimization of Collective
Communication Operations in MPICH", 2005), and twice that for an all-reduce. Over several domains each rank carries its
k-th part over the network, with a network adapter for each of the k ranks, while the rest goes through the fast links.
A tree goes up and down in log2(d) steps between domains. Switches that add up what passes through them (NVLink SHARP,
from Hopper on) take an all-reduce once over each link; between domains a tree joins them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zenith_tune.estimates.calibration import TimeCoefficients
from zenith_tune.estimates.workload import FloatArray, Machine, Number
from zenith_tune.layouts.layout_batch import BoolArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """One way of sending: its waits, and the share of the bandwidth that large messages reach."""

    base: float
    """Start of the kernel, in latencies of the fast link."""
    fast_step: float
    """A step inside a fast domain, in latencies of the fast link."""
    slow_step: float
    """A step between domains, in latencies of the network."""
    share: float


LL = Protocol(base=1.22, fast_step=0.26, slow_step=0.47, share=0.14)
"""A flag with every four bytes: the fastest start."""
LL128 = Protocol(base=2.68, fast_step=0.64, slow_step=0.45, share=0.48)
SIMPLE = Protocol(base=1.90, fast_step=1.26, slow_step=1.07, share=1.0)
"""Whole chunks behind a fence: the most bandwidth."""
RING = (LL, LL128, SIMPLE)
TREE = Protocol(base=1.90, fast_step=0.40, slow_step=2.14, share=0.64)
SWITCH = Protocol(base=5.24, fast_step=1.85, slow_step=2.62, share=0.70)
"""Switches that add up; a step inside a domain is counted per rank."""
SWITCH_NETWORK = 0.87
"""Share of the network that an all-reduce by switches reaches."""
MOST_ADAPTERS = 9.0
"""Most network adapters that one group of ranks keeps busy, however many ranks share a domain."""


def gather_time(
    num_bytes: Number, ranks: FloatArray, near: FloatArray, machine: Machine, c: TimeCoefficients
) -> FloatArray:
    """Return the time to gather or scatter `num_bytes` over `ranks`, `near` of which share a fast domain."""
    if not (ranks > 1).any():
        return np.zeros_like(ranks)
    return np.where(ranks > 1, _ring_time(num_bytes, ranks, near, machine, c, passes=1), 0.0)


def all_reduce_time(
    num_bytes: Number, ranks: FloatArray, near: FloatArray, machine: Machine, c: TimeCoefficients
) -> FloatArray:
    """Return the time to add up `num_bytes` of each rank on all of them."""
    levels = np.log2(ranks / near)
    inside = (near > 1) / (machine.fast_bytes_per_s * c.fast_efficiency)
    outside = (levels > 0) * _network_per_byte(near, machine, c)
    seconds = _ring_time(num_bytes, ranks, near, machine, c, passes=2)
    seconds = np.minimum(seconds, _tree_time(num_bytes * np.maximum(inside, outside), near, levels, machine))
    if np.any(machine.switch_sums):
        seconds = np.minimum(seconds, _switch_time(num_bytes, inside, outside, near, levels, machine))
    return np.where(ranks > 1, seconds, 0.0)


def _network_per_byte(near: FloatArray, machine: Machine, c: TimeCoefficients) -> FloatArray:
    """Return the seconds per byte that a domain sends over all adapters of the group's ranks."""
    return (1 / (machine.slow_bytes_per_s * c.slow_efficiency)) / np.minimum(near, MOST_ADAPTERS)


def _ring_time(
    num_bytes: Number, ranks: FloatArray, near: FloatArray, machine: Machine, c: TimeCoefficients, *, passes: int
) -> FloatArray:
    """Return the time of a ring that goes around `passes` times, with its fastest protocol."""
    domains = ranks / near
    inside = (1 - 1 / near) / (machine.fast_bytes_per_s * c.fast_efficiency)
    outside = (1 - 1 / domains) * _network_per_byte(near, machine, c)
    moving = passes * num_bytes * (inside + outside)
    fast_steps, waits = passes * (ranks - domains), (domains - 1) * (passes * machine.slow_latency_s)
    times = [
        (p.base + p.fast_step * fast_steps) * machine.fast_latency_s + p.slow_step * waits + moving * (1 / p.share)
        for p in RING
    ]
    return np.minimum(np.minimum(times[0], times[1]), times[2])


def _tree_time(moving: FloatArray, near: FloatArray, levels: FloatArray, machine: Machine) -> FloatArray:
    """Return the time of a tree between domains and a chain inside each, whose slowest link takes `moving`."""
    waits = (TREE.base + 2 * TREE.fast_step * (near - 1)) * machine.fast_latency_s
    return waits + levels * (2 * TREE.slow_step * machine.slow_latency_s) + moving * (2 / TREE.share)


def _switch_time(
    num_bytes: Number,
    inside: FloatArray,
    outside: FloatArray,
    near: FloatArray,
    levels: FloatArray,
    machine: Machine,
) -> FloatArray:
    """Return the time of an all-reduce by switches that add up; infinite where the links have none."""
    waits = (SWITCH.base + SWITCH.fast_step * near) * machine.fast_latency_s
    waits = waits + levels * (2 * SWITCH.slow_step * machine.slow_latency_s)
    # With more than two domains those in the middle of the tree receive from two: their bytes count twice.
    network = outside * (np.where(levels > 1, 2.0, 1.0) / SWITCH_NETWORK)
    seconds = waits + num_bytes * np.maximum(inside / SWITCH.share, network)
    return np.where(np.asarray(machine.switch_sums) > 0, seconds, np.inf)


EXCHANGE = Protocol(base=2.4, fast_step=0.3, slow_step=0.3, share=1.0)
"""An all-to-all: a message to every other rank, all at once."""
SEND = Protocol(base=2.0, fast_step=1.0, slow_step=1.2, share=1.0)


def all_to_all_time(
    num_bytes: Number,
    ranks: FloatArray,
    near: FloatArray,
    machine: Machine,
    c: TimeCoefficients,
    network_share: Number,
) -> FloatArray:
    """Return the time in which each rank sends an n-th of `num_bytes` to every other one."""
    far = ranks - near
    inside = num_bytes * (near - 1) / ranks / (machine.fast_bytes_per_s * c.fast_efficiency)
    outside = num_bytes * far / ranks / (machine.slow_bytes_per_s * network_share)
    waits = (EXCHANGE.base + EXCHANGE.fast_step * (near - 1)) * machine.fast_latency_s
    waits = waits + far * (EXCHANGE.slow_step * machine.slow_latency_s)
    return np.where(ranks > 1, waits + inside + outside, 0.0)


def send_time(num_bytes: FloatArray, is_near: BoolArray, machine: Machine, c: TimeCoefficients) -> FloatArray:
    """Return the time of one message from one rank to another, inside a fast domain or between two."""
    fast = machine.fast_bytes_per_s * c.fast_efficiency
    slow = machine.slow_bytes_per_s * c.slow_efficiency
    step = np.where(is_near, SEND.fast_step * machine.fast_latency_s, SEND.slow_step * machine.slow_latency_s)
    step = step + SEND.base * machine.fast_latency_s
    return step + num_bytes / np.where(is_near, fast, slow)
