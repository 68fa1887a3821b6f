"""The tables of a plan: ranked layouts, where a step's time and a GPU's memory go."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from zenith_tune.planner.explanation import StageMemory
from zenith_tune.planning.planned_layout import CAUSES, PlannedLayout
from zenith_tune.units import GIB, format_bytes, format_seconds

MAX_STAGES = 6
LEAST_SHARE = 0.0005
"""Parts of a step below this would show as 0.0%."""
LOW_RISK, HIGH_RISK = 0.05, 0.2


def layout_table(layouts: Iterable[PlannedLayout], *, show_gpus: bool = False) -> Table:
    """Return layouts as a table, in their order."""
    table = _table()
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("layout", min_width=24)
    for name in (*(["GPUs"] if show_gpus else []), "step", "tok/s/GPU", "MFU", "GiB (left)", "OOM"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("bound by", no_wrap=True)
    for number, planned in enumerate(layouts, start=1):
        gpus = [Text(str(planned.layout.num_gpus))] if show_gpus else []
        cells = [Text(str(number)), Text(planned.name), *gpus, *_cells(planned)]
        table.add_row(*cells, style="bold" if number == 1 else "")
    return table


def time_table(planned: PlannedLayout) -> Table:
    """Return where the time of a step goes, the largest part first."""
    table = _table()
    table.add_column("step time", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    for name, seconds in sorted(planned.time_parts.items(), key=lambda part: -part[1]):
        if seconds / planned.step_s >= LEAST_SHARE:
            table.add_row(CAUSES.get(name, name), format_seconds(seconds), f"{seconds / planned.step_s:.1%}")
    table.add_row("all", format_seconds(planned.step_s), "", style="bold")
    return table


def stage_table(stages: tuple[StageMemory, ...]) -> Table:
    """Return the memory of each pipeline stage by cause, in GiB; of a long pipeline, its ends and its fullest."""
    shown = _chosen(stages)
    names = [name for name in stages[0].parts if any(stage.parts[name] > 0 for stage in stages)]
    table = _table()
    table.add_column("memory", no_wrap=True)
    for stage in shown:
        table.add_column(f"stage {stage.stage}", justify="right", no_wrap=True)
    for name in names:
        table.add_row(name, *(format_bytes(stage.parts[name]) for stage in shown))
    table.add_row("all", *(format_bytes(stage.total_bytes) for stage in shown), style="bold")
    return table


def memory_table(planned: PlannedLayout) -> Table:
    """Return the memory of the fullest stage by cause."""
    table = _table()
    table.add_column("memory", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    for name, size in planned.memory_parts.items():
        if size > 0:
            table.add_row(name, format_bytes(size))
    table.add_row("all", format_bytes(planned.memory_bytes), style="bold")
    return table


def risk_style(probability: float) -> str:
    """Return the colour for a probability of running out of memory."""
    if probability < LOW_RISK:
        return "green"
    return "yellow" if probability < HIGH_RISK else "red"


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")


def _cells(planned: PlannedLayout) -> list[Text]:
    return [
        Text(format_seconds(planned.step_s)),
        Text(f"{planned.tokens_per_s_per_gpu:,.0f}"),
        Text(f"{planned.mfu:.1%}"),
        Text(f"{planned.memory_bytes / GIB:.1f} ({planned.headroom_bytes / GIB:.1f})"),
        Text(f"{planned.oom_probability:.0%}", style=risk_style(planned.oom_probability)),
        Text(planned.bound),
    ]


def _chosen(stages: tuple[StageMemory, ...]) -> list[StageMemory]:
    if len(stages) <= MAX_STAGES:
        return list(stages)
    fullest = max(stages, key=lambda stage: stage.total_bytes).stage
    return [stage for stage in stages if stage.stage in {0, 1, 2, len(stages) - 2, len(stages) - 1, fullest}]
