"""Levers of torchtitan: settings besides the layout, which are tried on the point that won.

Names are those of 0.1.0 to main at 2026-08-22. Products in 8 bits can be asked for by the command up to 0.2 alone;
later they are part of a configuration in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from zenith_tune.layouts.layout import SPLIT, Layout
from zenith_tune.presets.levers import ASSUMED, LeverDeclaration
from zenith_tune.presets.torchtitan.job import REPLICATE, SHARD, TitanJob
from zenith_tune.study.parameters import Value

CONVERTERS = "model.converters"
BENCHMARKS = "torchtitan's own benchmarks"


@dataclass(frozen=True, slots=True, kw_only=True)
class TitanSituation:
    """A layout of a job that levers are asked for."""

    job: TitanJob
    layout: Layout
    shard: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TitanLever(LeverDeclaration[TitanSituation]):
    """A lever of torchtitan."""

    sets: Callable[[TitanJob, Layout], Mapping[str, Value]]

    def is_for(self, at: TitanSituation) -> bool:
        """Return whether it can be turned on for a point of a job that does not have it yet."""
        wanted = self.sets(at.job, at.layout)
        return bool(wanted) and any(at.job.own(name) != value for name, value in wanted.items()) and self.goes(at)


def _fits_nodes(at: TitanSituation) -> bool:
    job, layout = at.job, at.layout
    is_sharded = at.shard != "ddp" and job.replicas == 1 and layout.ep == 1
    return is_sharded and job.num_nodes > 1 and layout.dp % job.num_nodes == 0 and layout.dp > job.num_nodes


def _converters(job: TitanJob, layout: Layout) -> dict[str, Value]:
    own = job.own(CONVERTERS) or []
    names = [own] if isinstance(own, str) else [str(each) for each in own]
    if job.dialect.converter is None or job.dialect.converter in names:
        return {}
    return {CONVERTERS: ",".join([*names, job.dialect.converter])}


LEVERS = (
    TitanLever(
        name="compile",
        sets=lambda job, layout: {job.dialect.compile: True},
        goes=lambda at: not at.layout.schedule_is(SPLIT),
        saves={"compute": 0.14, "overhead": 0.3},
        memory=-0.06,
        is_alone=True,
        source=f"{BENCHMARKS} (2024-12): Llama 3.1 8B on 8 H100, 5,762 to 6,667 tokens/s/GPU and 82.4 to 77.0 GiB",
    ),
    TitanLever(
        name="async_tp",
        sets=lambda job, layout: {job.dialect.async_tp: True},
        goes=lambda at: at.layout.tp > 1 and at.layout.sequence_parallel,
        needs={"compile": lambda at: at.job.compiles},
        saves={"tp": 0.5},
        is_alone=True,
        source=f"{BENCHMARKS} (2025-06): Llama 3.1 in bf16 on H100 is 9 to 10% faster",
    ),
    TitanLever(
        name="hsdp",
        # Shards inside a node, and a copy on each.
        sets=lambda job, layout: {REPLICATE: job.num_nodes, SHARD: layout.dp // job.num_nodes},
        goes=_fits_nodes,
        saves={"dp": 0.5},
        memory=0.3,
        is_alone=True,
        source=f"{ASSUMED}: weights are gathered inside a node; Zhao et al. 2023 (PyTorch FSDP, arXiv 2304.11277)",
    ),
    TitanLever(
        name="fp8",
        sets=_converters,
        saves={"compute": 0.22},
        numerics=True,
        needs={"compile": lambda at: at.job.compiles},
        is_alone=True,
        source=f"{BENCHMARKS} (2024-12): Llama 3.1 8B on 8 H100, compiled, 6,667 to 8,532 tokens/s/GPU",
    ),
)
