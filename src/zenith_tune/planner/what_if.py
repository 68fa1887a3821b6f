"""Plans for another machine, sequence or batch, compared with the present one."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from zenith_tune.describe.cluster_catalog import catalog_cluster
from zenith_tune.describe.cluster_spec import ClusterSpec, refuse_counts
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.errors import UsageError
from zenith_tune.registry import parse_pairs
from zenith_tune.units import GIB, format_bytes

if TYPE_CHECKING:
    from zenith_tune.planner.plan import Plan

KEYS = ("mem", "gpus", "seq", "gbs")
EXAMPLE = "mem=+8,gpus=128"
_NUMBER = re.compile(r"(?P<sign>[+-]?)(?P<number>[0-9]+(\.[0-9]+)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One changed quantity: a new value, or one added to the old."""

    key: str
    value: float
    is_relative: bool

    def apply(self, old: float) -> float:
        new = old + self.value if self.is_relative else self.value
        if new <= 0 or (self.key != "mem" and new != int(new)):
            raise UsageError(
                f"--what-if {self.key} must give a whole number from 1, but got {new:g}", hint="give another"
            )
        return new


def changed(
    cluster: ClusterSpec, job: JobSpec, global_batch: int, changes: list[Change]
) -> tuple[ClusterSpec, JobSpec, int]:
    """Return cluster, job and batch after changes; memory is in GiB per GPU."""
    for change in changes:
        if change.key == "mem":
            memory = change.apply(cluster.gpu.memory_bytes / GIB) * GIB
            cluster = replace(cluster, gpu=replace(cluster.gpu, memory_bytes=int(memory)))
        elif change.key == "gpus":
            cluster = resized(cluster, int(change.apply(cluster.num_gpus)))
        elif change.key == "seq":
            job = replace(job, seq_len=int(change.apply(job.seq_len)))
        else:
            global_batch = int(change.apply(global_batch))
    return cluster, job, global_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Two plans of one job, before and after a change."""

    text: str
    before: Plan
    after: Plan

    @property
    def hint(self) -> str | None:
        """A suggestion where memory is set below the present value, and adding was probably meant."""
        old, new = (plan.cluster.gpu.memory_bytes for plan in (self.before, self.after))
        change = next((change for change in parse_changes(self.text) if change.key == "mem"), None)
        if change is None or change.is_relative or new >= old:
            return None
        return f"mem={change.value:g} is less than the {format_bytes(old)} of now: mem=+{change.value:g} adds to it"

    @property
    def fits(self) -> bool:
        """Whether some layout fits, before or after."""
        return bool(self.before.best or self.after.best)

    @property
    def gain(self) -> float | None:
        """Gain in tokens per second, as a fraction; None where one plan has no layout that fits."""
        if not self.before.best or not self.after.best:
            return None
        return self.after.best[0].tokens_per_s / self.before.best[0].tokens_per_s - 1


def parse_changes(text: str) -> list[Change]:
    """Read `mem=+8,gpus=128`: a sign adds to the present value."""
    changes = []
    for key, value in parse_pairs(text, "--what-if").items():
        match = _NUMBER.fullmatch(value)
        if key not in KEYS or match is None:
            known = f"{', '.join(KEYS)} (mem in GiB per GPU; +8 adds)"
            raise UsageError(f"--what-if takes {known}, but got {key}={value}", hint=f"write e.g. {EXAMPLE}")
        changes.append(Change(key=key, value=float(match["sign"] + match["number"]), is_relative=bool(match["sign"])))
    return changes


def resized(cluster: ClusterSpec, num_gpus: int) -> ClusterSpec:
    """Return the same kind of cluster with another number of GPUs."""
    if cluster.name == f"{cluster.gpu.name}x{cluster.num_gpus}":  # a catalog name: the catalog has the nodes
        return replace(catalog_cluster(cluster.gpu.name, num_gpus), gpu=cluster.gpu)
    nodes, domain = cluster.gpus_per_node, cluster.fast_domain
    name = f"{cluster.name} with {num_gpus} GPUs"
    refuse_counts(f"cluster {name!r}", num_gpus=num_gpus, gpus_per_node=nodes, fast_domain=domain)
    return replace(cluster, num_gpus=num_gpus, name=name)
