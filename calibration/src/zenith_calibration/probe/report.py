"""A probe for people: what each stage measured, what is modelled, and what both make of a step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from zenith_calibration.calibrate.probed_runs import FILE_NAME
from zenith_calibration.probe.probed_layout import MEASURED, ProbedLayout, ProbedStage, ranked
from zenith_tune.calibrate.holdout import LEAST_RUNS
from zenith_tune.describe.gpu_catalog import match_gpu
from zenith_tune.planner.plan import CAUSES, PlannedLayout
from zenith_tune.units import GIB, format_gain, format_seconds

LEAST_SHARE = 0.002
"""Modelled parts of a step below this are not shown."""


class ProbeReport:
    """Probes on a console."""

    def __init__(self, console: Console, *, gpu: str) -> None:
        self._console = console
        self._gpu = gpu
        """That of the cluster, as the catalog calls it."""

    def layout(self, probed: ProbedLayout) -> None:
        """Print one layout: its stages as measured and planned, then what the whole step comes to."""
        self.say(probed.planned.name, style="bold")
        self._console.print(_stage_table(probed.stages))
        if not probed.ok:
            self.say(f"  does not train: {probed.cause}")
            return
        combined = probed.combined()
        self.say(f"  measured: {_measured(probed)}")
        measured_on = probed.stages[0].probe.gpu
        if match_gpu(measured_on) not in (None, self._gpu):
            problem = f"the cluster has {self._gpu}, but the ranks ran on {measured_on}"
            self.say(f"  note: {problem}: their memory holds there, their time does not")
        self.say(f"  modelled: {_modelled(combined)}")
        planned = probed.planned
        speed = f"{combined.tokens_per_s / planned.layout.num_gpus:,.0f} tokens/s/GPU"
        self.say(f"  step: {format_seconds(combined.step_s)} ({speed}), planned {format_seconds(planned.step_s)}")

    def summary(self, probed: Sequence[ProbedLayout], folder: Path) -> None:
        """Print how several layouts rank, and where everything is written."""
        if len(probed) > 1:
            self.ranking(ranked(probed))
        self.say(f"written: {folder / FILE_NAME}")
        if sum(stage.probe.ok for each in probed for stage in each.stages) >= LEAST_RUNS:
            self.say(f"use it: zenithtune calibrate --probes {folder} --output mine.json")

    def ranking(self, probed: Sequence[ProbedLayout]) -> None:
        """Print the layouts in their new order, next to the place that the plan had given them."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("", "planned as"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("layout", min_width=24)
        for name in ("step", "planned", "peak GiB", "planned"):
            table.add_column(name, justify="right", no_wrap=True)
        by_plan = sorted(probed, key=lambda each: each.planned.step_s)
        places = {id(each): place for place, each in enumerate(by_plan, start=1)}
        for number, each in enumerate(probed, start=1):
            table.add_row(str(number), str(places[id(each)]), each.planned.name, *_ranked_cells(each))
        self._console.print(table)

    def say(self, line: str, style: str | None = None) -> None:
        # A cause quotes a log, whose brackets and colons are no markup.
        self._console.print(line, style=style, soft_wrap=True, markup=False, emoji=False)


def _ranked_cells(probed: ProbedLayout) -> list[str]:
    planned, fullest = probed.planned, probed.fullest
    if not probed.ok or fullest is None or fullest.probe.peak_bytes is None:
        return [probed.cause.partition(":")[0] or "-", format_seconds(planned.step_s), "-", "-"]
    measured, expected = fullest.probe.peak_bytes / GIB, fullest.planned_bytes / GIB
    step = format_seconds(probed.combined().step_s)
    return [step, format_seconds(planned.step_s), f"{measured:.1f}", f"{expected:.1f}"]


def _stage_table(stages: Sequence[ProbedStage]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
    for name in ("stage", "rank", "peak GiB", "planned", "off", "work", "planned", "off"):
        table.add_column(name, justify="right", no_wrap=True)
    for stage in stages:
        probe = stage.probe
        memory, time = ["-"] * 3, ["-"] * 3
        if probe.peak_bytes and stage.memory_ratio:
            memory = [f"{probe.peak_bytes / GIB:.2f}", f"{stage.planned_bytes / GIB:.2f}", _off(stage.memory_ratio)]
        if stage.compute_s is not None and stage.time_ratio:
            time = [format_seconds(stage.compute_s), format_seconds(stage.plan.compute_s), _off(stage.time_ratio)]
        table.add_row(str(probe.stage), str(probe.rank), *memory, *time)
    return table


def _off(ratio: float) -> str:
    """Return how far the plan is from what was measured."""
    return format_gain(1 / ratio - 1)


def _measured(probed: ProbedLayout) -> str:
    first = probed.stages[0].probe
    stages = ", ".join(str(stage.probe.stage) for stage in probed.stages)
    kinds = {"hook": "allocated", "log": "as its log prints it", "nvidia-smi": "as nvidia-smi sees it"}
    kind = kinds.get(first.source, "not known")
    batches = f"{first.num_micro_batches} micro-batches"
    job = probed.stages[0].num_micro_batches
    if job != first.num_micro_batches:
        batches += f" (the job has {job}, estimated from these)"
    what = f"peak memory ({kind}) and work of one rank of stage {stages}"
    return f"{what}, {first.num_steps} steps of {batches}" + f" on {first.gpu or 'a machine where no GPU was seen'}"


def _modelled(planned: PlannedLayout) -> str:
    """Return what of a step no single rank can measure."""
    parts = [(name, part) for name, part in planned.time_parts.items() if name not in MEASURED]
    shown = [
        f"{CAUSES.get(name, name)} {format_seconds(part)}"
        for name, part in sorted(parts, key=lambda part: -part[1])
        if part / planned.step_s >= LEAST_SHARE
    ]
    return ", ".join(shown) or "nothing: there is one rank"
