"""How long ranks take to exchange a message of a given size: the fastest of NCCL's algorithms and protocols.

Legend: n ranks in a group, k of them in one fast domain, d = n/k domains; V bytes that each rank ends up with or starts
from; FAST and SLOW the links' rates times the share of them that a large message reaches (the fitted efficiencies).

Each algorithm takes `base + steps * latency + bytes / bandwidth`, as NCCL's own tuner reckons, and the fastest is taken
(NVIDIA/nccl, src/graph/tuning.cc, 2.29 of 2026-06-11: its base latencies, its latency of a step by protocol and link,
its shares of the bandwidth). The constants here began as NCCL's and were then fitted, all at once, to 539 published
rows of nccl-tests (benchmarks/nccl-tables.csv, 2026-11-16; tests/estimate/test_nccl_tables.py compares them).

A ring passes (n-1)/n * V over every link in n-1 steps, d-1 of them between domains (Thakur et al., "Optimization of
Collective Communication Operations in MPICH", 2005), and twice that for an all-reduce. Between domains it has one
network adapter for each of its k ranks, so that it runs at FAST or k * SLOW, whichever is less. A tree goes up and down
in log2(d) steps between domains. Switches that add up what passes through them (NVLink SHARP, from Hopper on) take an
all-reduce once over each link; between domains a tree joins them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zenith_tune.estimate.calibration import TimeCoefficients
from zenith_tune.estimate.workload import FloatArray, Machine, Number
from zenith_tune.layouts.layout_batch import BoolArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """Hold one way of sending: what it waits, and the share of the bandwidth of large messages that it reaches."""

    base_s: float
    """Before the first step: the kernel's start."""
    fast_step: float
    """A step inside a fast domain, in latencies of its link."""
    slow_step: float
    """A step between domains, in latencies of the network."""
    share: float


LL = Protocol(base_s=5.4e-6, fast_step=0.28, slow_step=0.55, share=0.13)
"""Flags beside every four bytes: the quickest start."""
LL128 = Protocol(base_s=13.3e-6, fast_step=0.66, slow_step=0.37, share=0.48)
SIMPLE = Protocol(base_s=7.7e-6, fast_step=1.35, slow_step=1.0, share=1.0)
"""Whole chunks behind a fence: the most bandwidth."""
RING = (LL, LL128, SIMPLE)
TREE = Protocol(base_s=10.0e-6, fast_step=0.42, slow_step=2.2, share=0.76)
SWITCH = Protocol(base_s=30.0e-6, fast_step=1.84, slow_step=2.15, share=0.69)
"""Switches that add up; the step inside a domain is that of one rank, since each has its part to drive."""
MOST_ADAPTERS = 9.5
"""Network adapters that one group of ranks keeps busy at most, however many ranks share a domain."""


def gather_time(
    num_bytes: Number, ranks: FloatArray, near: FloatArray, machine: Machine, c: TimeCoefficients
) -> FloatArray:
    """Return the time to gather or scatter `num_bytes` over `ranks`, `near` of which share a fast domain."""
    link = _link(ranks, near, machine, c)
    return np.where(ranks > 1, _ring_time(num_bytes, ranks, near, machine, link, passes=1), 0.0)


def all_reduce_time(
    num_bytes: Number, ranks: FloatArray, near: FloatArray, machine: Machine, c: TimeCoefficients
) -> FloatArray:
    """Return the time to add up `num_bytes` of each rank and give all of them the sum."""
    link = _link(ranks, near, machine, c)
    ring = _ring_time(num_bytes, ranks, near, machine, link, passes=2)
    levels = np.log2(ranks / near)
    up = (near - 1) * (TREE.fast_step * machine.fast_latency_s) + levels * (TREE.slow_step * machine.slow_latency_s)
    tree = TREE.base_s + 2 * up + 2 * num_bytes / (link * TREE.share)
    seconds = np.minimum(np.minimum(ring, tree), _switch_time(num_bytes, ranks, near, levels, machine, c))
    return np.where(ranks > 1, seconds, 0.0)


def _link(ranks: FloatArray, near: FloatArray, machine: Machine, c: TimeCoefficients) -> FloatArray:
    """Return the rate at which a group's ring runs: that of its slowest link."""
    fast = machine.fast_bytes_per_s * c.fast_efficiency
    adapters = np.where(ranks > near, np.minimum(near, MOST_ADAPTERS), np.inf)
    return np.minimum(fast, adapters * (machine.slow_bytes_per_s * c.slow_efficiency))


def _ring_time(
    num_bytes: Number, ranks: FloatArray, near: FloatArray, machine: Machine, link: FloatArray, *, passes: int
) -> FloatArray:
    domains = ranks / near
    inside = (ranks - domains) * (passes * machine.fast_latency_s)
    outside = (domains - 1) * (passes * machine.slow_latency_s)
    moving = passes * num_bytes * (ranks - 1) / (ranks * link)
    times = [p.base_s + inside * p.fast_step + outside * p.slow_step + moving * (1 / p.share) for p in RING]
    return np.minimum(np.minimum(times[0], times[1]), times[2])


def _switch_time(
    num_bytes: Number,
    ranks: FloatArray,
    near: FloatArray,
    levels: FloatArray,
    machine: Machine,
    c: TimeCoefficients,
) -> FloatArray:
    """Return the time of an all-reduce by switches that add up; never where the links have none."""
    waits = near * (SWITCH.fast_step * machine.fast_latency_s)
    waits = waits + levels * (2 * SWITCH.slow_step * machine.slow_latency_s)
    fast = machine.fast_bytes_per_s * c.fast_efficiency * SWITCH.share
    adapters = np.where(ranks > near, np.minimum(near, MOST_ADAPTERS), np.inf)
    rate = np.minimum(fast, adapters * (machine.slow_bytes_per_s * c.slow_efficiency))
    # Of more than two domains those inside a tree receive from two and send on: what they carry counts twice.
    passes = np.where(levels > 1, 2.0, 1.0)
    found = SWITCH.base_s + waits + passes * num_bytes / rate
    return np.where(np.asarray(machine.switch_sums) > 0, found, np.inf)


EXCHANGE = Protocol(base_s=12.0e-6, fast_step=0.8, slow_step=0.25, share=1.0)
"""An all-to-all: a message to every other rank, all of them under way at once."""
SEND = Protocol(base_s=10.0e-6, fast_step=1.0, slow_step=1.2, share=1.0)


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
    waits = (near - 1) * (EXCHANGE.fast_step * machine.fast_latency_s)
    waits = waits + far * (EXCHANGE.slow_step * machine.slow_latency_s)
    return np.where(ranks > 1, EXCHANGE.base_s + waits + inside + outside, 0.0)


def send_time(num_bytes: FloatArray, is_near: BoolArray, machine: Machine, c: TimeCoefficients) -> FloatArray:
    """Return the time of one message from one rank to another, inside a fast domain or between two."""
    fast = machine.fast_bytes_per_s * c.fast_efficiency
    slow = machine.slow_bytes_per_s * c.slow_efficiency
    step = np.where(is_near, SEND.fast_step * machine.fast_latency_s, SEND.slow_step * machine.slow_latency_s)
    return SEND.base_s + step + num_bytes / np.where(is_near, fast, slow)
