"""Landscapes as they were measured: every layout tried for one model on one cluster, its step time or its crash."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from held_out import forbidden
from scoreboard_choice import LEAST_LAYOUTS, PLAYBOOK

from zenith_calibration.calibrate.measured_rows import csv_files, csv_rows, read_measured
from zenith_calibration.calibrate.memory_fit import MEASURED_ON, layout_columns
from zenith_tune.calibrate.measured_run import DEFAULT_COLUMNS, MeasuredRun
from zenith_tune.calibrate.time_fit import run_cluster
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.gpu_catalog import find_gpu
from zenith_tune.describe.job_spec import JobSpec, PlanSubject
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.layout_batch import RECOMPUTE_NAMES
from zenith_tune.study.parameters import CategoricalParameter, Parameter, Params, Value
from zenith_tune.units import MIB

SOURCES = (PLAYBOOK, "h200_")
"""How the names of sources begin that measured whole landscapes."""
AXES = ("tp", "pp", "vp", "cp", "ep", "etp", "zero", "mbs")
"""What distinguishes a layout, besides its recomputation; data parallelism follows from them."""
START_UP_S, NUM_STEPS = 60.0, 15
"""Of a trial whose duration was not recorded: Megatron-LM on one H200 takes 45 to 75 s, most of it to start."""
EXTRAS = ("trial_wall_s", "max_reserved_mib")
"""Columns of a measured run that only a replay needs; they are kept among its notes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One layout of a landscape; its repeats count as one."""

    point: Params
    layout: Layout
    step_s: float | None
    """Median of the repeats that ran; None where every one crashed."""
    wall_s: float | None = None
    """How long the whole trial took, where that was recorded."""
    peak_memory_bytes: int | None = None

    @property
    def duration_s(self) -> float:
        """How long a trial takes; one that crashes ends as it starts."""
        return self.wall_s or START_UP_S + NUM_STEPS * (self.step_s or 0.0)

    @property
    def gpu_seconds(self) -> float:
        """What a trial costs."""
        return self.layout.num_gpus * self.duration_s


Find = Callable[[Mapping[str, Value]], Recorded | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Landscape:
    """The measurements of one model on one cluster, less what the framework's own rules forbid."""

    name: str
    source: str
    place: tuple[str, str]
    """The model's shape and the cluster: what is left out together when a calibration is fitted."""
    subject: PlanSubject
    recorded: list[Recorded]

    @property
    def best_s(self) -> float:
        """The lowest recorded step time."""
        return min(item.step_s for item in self.recorded if item.step_s is not None)

    @property
    def space(self) -> dict[str, Parameter]:
        """Every choice that was recorded of what differs from layout to layout."""
        names = self.recorded[0].point
        found = {name: {item.point[name] for item in self.recorded} for name in names}
        return {name: CategoricalParameter(_ordered(choices)) for name, choices in found.items()}

    def finder(self) -> Find:
        """Return what finds the layout that a point of the search space stands for, where it was recorded."""
        by_point = {_key(item.point): item for item in self.recorded}
        return lambda params: by_point.get(_key(params))

    def behind(self, item: Recorded) -> float:
        """Return by which fraction a layout is slower than the best; infinite where it crashed."""
        return math.inf if item.step_s is None else item.step_s / self.best_s - 1


def read_runs(place: Path) -> list[MeasuredRun]:
    """Read measured runs, and with each what only a replay needs."""
    runs = read_measured(place)
    rows = [row for path in csv_files(place) for row in csv_rows(path) if row["source_id"] and row["model"]]
    return [
        replace(run, notes=run.notes | {name: row[name] for name in EXTRAS if row.get(name)})
        for run, row in zip(runs, rows, strict=True)
    ]


def landscapes(runs: Sequence[MeasuredRun]) -> list[Landscape]:
    """Return every landscape of which enough layouts ran; rows that their source marks are left out."""
    groups: dict[tuple[object, ...], list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        if run.source.startswith(SOURCES) and _is_whole(run):
            batch = run.layout.get("gbs")
            groups[run.source, run.framework, run.model_name, run.landscape, run.seq_len, batch].append(run)
    found = [_landscape(group) for group in groups.values()]
    return sorted((item for item in found if _num_ran(item) >= LEAST_LAYOUTS), key=lambda item: item.name)


def _key(params: Mapping[str, Value]) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted(params.items()))


def _is_whole(run: MeasuredRun) -> bool:
    stated = run.model is not None and run.seq_len and run.num_gpus and run.layout.keys() >= {"dp", "mbs"}
    known = run.cluster is not None or find_gpu(run.gpu) is not None
    return bool(stated) and known and not run.flags and (run.out_of_memory or bool(run.step_s))


def _num_ran(landscape: Landscape) -> int:
    return sum(item.step_s is not None for item in landscape.recorded)


def _landscape(runs: list[MeasuredRun]) -> Landscape:
    first = runs[0]
    where = f"{first.model_name} on {first.gpu}x{first.num_gpus}"
    return Landscape(
        name=where if first.source == PLAYBOOK else f"{where} ({first.framework}, sequence {first.seq_len})",
        source=first.source,
        place=first.landscape,
        subject=subject_of(first),
        recorded=_recorded([run for run in runs if forbidden(run) is None]),
    )


def subject_of(run: MeasuredRun) -> PlanSubject:
    """Return the model, the cluster and the job of a run that states them."""
    assert run.model is not None and run.seq_len
    job = JobSpec(
        seq_len=run.seq_len,
        framework=load_framework(run.framework),
        precision=run.precision,
        dispatcher=run.dispatcher,
    )
    return PlanSubject(model=run.model, cluster=run_cluster(run), job=job)


def _recorded(runs: list[MeasuredRun]) -> list[Recorded]:
    """Return one item per layout, in the order of the record, with what differs between them."""
    batch = _common_batch(runs)
    repeats: dict[tuple[Value, ...], list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        repeats[tuple(_choices(run).values())].append(run)
    points = [_choices(same[0]) for same in repeats.values()]
    varied = [name for name in (*AXES, "recompute") if len({point[name] for point in points}) > 1]
    return [
        _item(same, {name: point[name] for name in varied}, batch)
        for same, point in zip(repeats.values(), points, strict=True)
    ]


def _choices(run: MeasuredRun) -> Params:
    columns = DEFAULT_COLUMNS | layout_columns(run)
    layers = columns["recompute_layers"]
    way = RECOMPUTE_NAMES[columns["recompute"]] + (f" of {layers} layers" if layers > 1 else "")
    return {**{name: int(columns[name]) for name in AXES}, "recompute": way}


def _common_batch(runs: list[MeasuredRun]) -> int | None:
    """Return samples per data-parallel rank of the batch that all layouts are compared by, where none is stated.

    Runs that state none took a step after each micro-batch. Steps of different micro-batches are compared as the time
    that the same samples take, which is what a job with a fixed batch sees, but for its fewer steps of the optimizer.
    """
    return None if "gbs" in runs[0].layout else math.lcm(*(int(run.layout["mbs"]) for run in runs))


def _item(repeats: list[MeasuredRun], point: Params, batch: int | None) -> Recorded:
    columns = DEFAULT_COLUMNS | layout_columns(repeats[0])
    if batch is not None:
        columns["gbs"] = batch * columns["dp"]
    micro_batches = 1 if batch is None else batch // columns["mbs"]
    steps = [run.step_s * micro_batches for run in repeats if run.step_s and not run.out_of_memory]
    walls = [float(run.notes["trial_wall_s"]) for run in repeats if "trial_wall_s" in run.notes]
    peaks = [peak for run in repeats if (peak := _peak(run)) is not None]
    return Recorded(
        point=point,
        layout=layout_of(columns, repeats[0].num_gpus or 1),
        step_s=median(steps) if steps else None,
        wall_s=median(walls) if walls else None,
        peak_memory_bytes=round(median(peaks)) if steps and peaks else None,
    )


def layout_of(columns: Mapping[str, int | bool], num_gpus: int) -> Layout:
    """Return the layout that columns of a batch stand for."""
    sizes: dict[str, Any] = {name: int(columns[name]) for name in AXES if name != "mbs"}
    return Layout(
        num_gpus=num_gpus,
        **sizes,
        micro_batch=int(columns["mbs"]),
        global_batch=int(columns["gbs"]),
        recompute=RECOMPUTE_NAMES[columns["recompute"]],
        recompute_layers=int(columns["recompute_layers"]),
        sequence_parallel=bool(columns["sequence_parallel"]),
        flash_attention=bool(columns["flash_attention"]),
    )


def _peak(run: MeasuredRun) -> float | None:
    """Return what a log would show of the fullest rank, where the record has it: some sources print another rank's."""
    if reserved := run.notes.get("max_reserved_mib"):
        return float(reserved) * MIB
    is_fullest = run.source not in MEASURED_ON or run.layout.get("pp", 1) == 1
    return run.memory_bytes if is_fullest else None


def _ordered(choices: set[Value]) -> list[Value]:
    """Return sizes from the smallest up, and ways to recompute from none to all."""
    ways = {name: i for i, name in enumerate(RECOMPUTE_NAMES)}
    return sorted(choices, key=lambda choice: (ways.get(str(choice).partition(" ")[0], choice), str(choice)))
