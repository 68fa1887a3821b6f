"""Jobs of an encoder and a language model that the tests of their plans share."""

from __future__ import annotations

from typing import Any

from zenith_mimo.planning.job import MimoDevice, MimoJob
from zenith_mimo.planning.work import ModuleWork, PartWork
from zenith_tune.describe.cluster_spec import LinkSpec

INSTANT = LinkSpec(bytes_per_s=1e30, latency_s=0.0)
SLOW = LinkSpec(bytes_per_s=1e30, latency_s=0.01)


def module(num_layers: int, layer_flops: float, **fields: Any) -> ModuleWork:
    """Return a module whose layers cost so much forward, and whose ends cost nothing."""
    part = PartWork(split_flops=layer_flops, split_params=1000, whole_params=10, split_kept=4000, whole_kept=800)
    fields = {"hidden_numbers": 4.0, "output_numbers": 4.0, "widths": (("the heads", 4),), **fields}
    return ModuleWork(num_layers=num_layers, layer=part, first=PartWork(), last=PartWork(), **fields)


def mimo_job(
    num_ranks: int = 4, *, link: LinkSpec = INSTANT, memory_bytes: float = float("inf"), **fields: Any
) -> MimoJob:
    """Return a job on devices of one FLOP a second, so that FLOPs are seconds."""
    device = MimoDevice(flops_per_s=1.0, fast_link=link, link=link, memory_bytes=memory_bytes)
    defaults = {
        "encoder": module(2, 1.0),
        "language": module(4, 1.0),
        "global_batch": 8,
        "items": (1,),
        "device": device,
    }
    return MimoJob(num_ranks=num_ranks, **{**defaults, **fields})
