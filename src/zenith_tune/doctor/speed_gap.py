"""Why one run is slower than another: the gap between their speeds, split among all that they differ in.

Every cause is one thing of the other run in place of one's own: its precision, its micro-batch, its pipeline. The speed
of each mixture of the two runs is predicted, and a cause's share of the gap is its mean over all orders in which causes
can be changed (Shapley 1953), so that the factors multiply to the ratio of the two predictions. What the measured ratio
is beyond that is not explained by a plan.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from zenith_tune.describe.cluster_spec import LinkSpec, precision_class
from zenith_tune.describe.framework_spec import OwnPipeline
from zenith_tune.describe.gpu_catalog import find_gpu, node_fields
from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.estimates.calibration import Calibration
from zenith_tune.estimates.model_flops import flops_per_token
from zenith_tune.estimates.step import known_numbers
from zenith_tune.estimates.time import MESSAGES, estimate_time
from zenith_tune.estimates.workload import FloatArray, Machine, Workload
from zenith_tune.layouts.layout import Layout, layout_of, parse_values, short_values
from zenith_tune.layouts.layout_batch import batch_of

MACHINE = ("gpu", "gpus_per_node", "fast_domain", "fast_link", "node_link", "network")
CAUSES: dict[str, tuple[str, ...]] = {
    "model": ("model",),
    "machine": MACHINE,
    "number of GPUs": ("gpus",),
    "sequence length": ("seq",),
    "batch": ("samples/GPU",),
    "precision": ("precision",),
    "framework": ("framework",),
    "token dispatcher": ("dispatcher",),
    "tensor parallelism": ("tp", "sp"),
    "pipeline": ("pp", "vp", "schedule", "own_pipeline"),
    "context parallelism": ("cp",),
    "expert parallelism": ("ep", "etp"),
    "sharding": ("zero",),
    "micro-batch": ("mbs",),
    "recomputation": ("recompute",),
    "attention kernel": ("flash",),
}
"""What two runs may differ in, and the settings of each."""
THROUGH = {**dict.fromkeys(MESSAGES, "messages"), "overhead": "host", "optimizer": "compute"}
"""Parts of a step under a common name."""
Settings = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GapCause:
    """A share of the gap between two runs."""

    name: str
    factor: float
    """How many times faster the other run is for it; below 1 where one's own is the better."""
    basis: str = "predicted"
    """predicted, measured or unexplained."""
    through: str = ""
    """The part of a step that changes most: compute, messages, host, bubble or recompute."""
    change: str = ""
    """Own settings and those of the other run."""


def settings_of(subject: PlanSubject, layout: Layout) -> Settings:
    """Return all that a run's predicted speed depends on, by name."""
    cluster, job, num_gpus = subject.cluster, subject.job, layout.num_gpus
    machine = {name: getattr(cluster, name) for name in MACHINE}
    if find_gpu(cluster.gpu.name) is not None:
        # A job that does not fill nodes or fast domains has them cut to its size.
        usual = node_fields(cluster.gpu.name)
        if num_gpus <= cluster.gpus_per_node:
            machine["gpus_per_node"] = usual["gpus_per_node"]
        if 2 * cluster.fast_domain > min(usual["fast_domain"], num_gpus):
            machine["fast_domain"] = usual["fast_domain"]
    values = short_values(layout)
    del values["dp"], values["recompute_layers"]
    return {
        **values,
        **machine,
        "recompute": f"{layout.recompute}{layout.recompute_layers or ''}",
        "gpus": num_gpus,
        "samples/GPU": Fraction(layout.global_batch, num_gpus),
        "model": subject.model,
        "seq": job.seq_len,
        "precision": job.precision,
        "dispatcher": job.dispatcher,
        "framework": replace(job.framework, own_pipeline=None),
        "own_pipeline": job.framework.own_pipeline,
        "job": job,
        "cluster": cluster,
    }


def run_of(settings: Mapping[str, Any]) -> tuple[PlanSubject, Layout]:
    """Return the run with these settings, with as many GPUs and samples as its sizes divide, nearest to those given."""
    s = settings
    ranks = math.lcm(s["tp"] * s["pp"] * s["cp"], s["ep"] * s["etp"] * s["pp"])
    num_gpus = ranks * max(round(s["gpus"] / ranks), 1)
    at_once = s["mbs"] * num_gpus // (s["tp"] * s["pp"] * s["cp"])
    batch = at_once * max(round(s["samples/GPU"] * num_gpus / at_once), 1)
    values = {name: s[name] for name in short_values(Layout(num_gpus=1)).keys() & s.keys()}
    values |= parse_values(s["recompute"], what="layout")
    layout = layout_of(values, num_gpus=num_gpus, global_batch=batch)
    domain = max(size for size in range(1, min(s["fast_domain"], num_gpus) + 1) if num_gpus % size == 0)
    machine = {name: s[name] for name in MACHINE} | {"fast_domain": domain}
    framework = replace(s["framework"], own_pipeline=s["own_pipeline"])
    job = {"seq_len": s["seq"], "precision": s["precision"], "dispatcher": s["dispatcher"], "framework": framework}
    return PlanSubject(model=s["model"], cluster=replace(s["cluster"], **machine), job=replace(s["job"], **job)), layout


def alike(mine: Settings, theirs: Settings) -> Settings:
    """Return the other run's settings, with one's own where the difference is one of name only."""
    a, b = mine["model"], theirs["model"]
    shape = ("num_layers", "hidden", "num_experts", "trained_share")
    same = {
        "model": all(getattr(a, name) == getattr(b, name) for name in shape),
        "gpu": mine["gpu"].name == theirs["gpu"].name,
        "precision": precision_class(mine["precision"]) == precision_class(theirs["precision"]),
        "framework": mine["framework"].name == theirs["framework"].name,
        "dispatcher": not a.num_experts,
        "etp": not a.num_experts,
    }
    return theirs | {name: mine[name] for name in ("job", "cluster", *(name for name in same if same[name]))}


Calibrations = Callable[[str], Calibration]


def step_parts(runs: Sequence[tuple[PlanSubject, Layout]], calibration: Calibrations) -> dict[str, FloatArray]:
    """Return the seconds per operation of each GPU in each part of the runs' steps, with memory to spare."""
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row, (each, _) in enumerate(runs):
        job = each.job
        groups[job.framework.name, job.framework.own_pipeline, each.cluster.gpu.name, job.precision].append(row)
    found: dict[str, FloatArray] = defaultdict(lambda: np.zeros(len(runs)))
    for rows in groups.values():
        subjects, layouts = [runs[row][0] for row in rows], [runs[row][1] for row in rows]
        first = subjects[0]
        fitted = calibration(first.job.framework.name)
        *_, coefficients = known_numbers(first.model, first.cluster, first.job, fitted)
        workload = Workload.stack([Workload.of(each.model, each.job) for each in subjects])
        machine = Machine.stack([Machine.of(each.cluster, each.job.precision) for each in subjects])
        time = estimate_time(workload, machine, batch_of(layouts), first.job.framework, coefficients)
        work = [work_of(each, layout) for each, layout in zip(subjects, layouts, strict=True)]
        for name, part in time.parts.items():
            found[THROUGH.get(name, name)][rows] += part / work
    return found


def work_of(subject: PlanSubject, layout: Layout) -> float:
    """Return the model's operations of a step on each GPU."""
    seq_len = subject.job.seq_len
    return flops_per_token(subject.model, seq_len) * layout.global_batch * seq_len / layout.num_gpus


def split_gap(mine: Settings, theirs: Settings, calibration: Calibrations) -> tuple[GapCause, ...]:
    """Return what the other run is predicted to be faster or slower for, each cause with its factor."""
    theirs = alike(mine, theirs)
    causes = [cause for cause, names in CAUSES.items() if any(mine[name] != theirs[name] for name in names)]
    # Bit k of a mixture's number says whether it has cause k.
    mixtures = np.arange(2 ** len(causes))
    parts = step_parts([run_of(_mixture(mine, theirs, causes, number)) for number in mixtures.tolist()], calibration)
    speed = -np.log(sum(parts.values()))
    shares = shapley_values(speed, len(causes))
    found = []
    for place, (cause, share) in enumerate(zip(causes, shares, strict=True)):
        changed = {name: (part[1 << place] - part[0]) * math.copysign(1, share) for name, part in parts.items()}
        through = min(changed, key=lambda name: changed[name])
        change = change_text(mine, theirs, CAUSES[cause])
        found.append(GapCause(name=cause, factor=math.exp(share), through=through, change=change))
    return tuple(found)


def _mixture(mine: Settings, theirs: Settings, causes: Sequence[str], number: int) -> Settings:
    chosen = (cause for place, cause in enumerate(causes) if number >> place & 1)
    return mine | {name: theirs[name] for cause in chosen for name in CAUSES[cause]}


def shapley_values(values: FloatArray, size: int) -> list[float]:
    """Return what each of `size` members adds to a set on average over all orders, given the value of every set."""
    sets = np.arange(len(values))
    num_members = np.array([number.bit_count() for number in sets.tolist()])
    weights = np.array([1 / (size * math.comb(size - 1, number)) for number in range(size)])
    without = [sets[sets >> place & 1 == 0] for place in range(size)]
    gains = (values[each | 1 << place] - values[each] for place, each in enumerate(without))
    return [float(weights[num_members[each]] @ gain) for each, gain in zip(without, gains, strict=True)]


def change_text(mine: Settings, theirs: Settings, names: Iterable[str]) -> str:
    """Return the settings that differ, one's own first."""
    differ = [name for name in names if mine[name] != theirs[name]]
    pairs = ((name, _shown(mine[name]), _shown(theirs[name])) for name in differ)
    return ", ".join(f"{name} {a} -> {b}" for name, a, b in pairs)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, LinkSpec):
        return f"{value.bytes_per_s / 1e9:g} GB/s"
    if isinstance(value, OwnPipeline):
        return "written out"
    return f"{float(value):.3g}" if isinstance(value, Fraction) else str(getattr(value, "name", value))
