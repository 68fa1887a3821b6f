"""A plan for people, on a terminal."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from zenith_tune.describe.gpu_catalog import PRICES_OF
from zenith_tune.errors import UsageError
from zenith_tune.planner.comparison import ClusterComparison
from zenith_tune.planner.cost import TrainingCost
from zenith_tune.planner.explanation import LEAST_GAIN, Explanation, StageMemory, Step
from zenith_tune.planner.plan import CAUSES, Obstacle, Plan, PlannedLayout, changes
from zenith_tune.planner.ways_out import WayOut, way_lines
from zenith_tune.planner.what_if import WhatIf
from zenith_tune.presets.emission import Emission
from zenith_tune.study.files import write_output
from zenith_tune.units import (
    GIB,
    count,
    format_bytes,
    format_days,
    format_dollars,
    format_gain,
    format_gpu_hours,
    format_seconds,
    format_tokens,
)

MAX_STAGES = 6
LEAST_SHARE = 0.0005
"""Parts of a step below this would show as 0.0%."""
LOW_RISK, HIGH_RISK = 0.05, 0.2
_STYLE: dict[str, Any] = {"box": None, "pad_edge": False, "padding": (0, 1, 0, 0), "header_style": "bold"}


def layout_table(layouts: Iterable[PlannedLayout], *, show_gpus: bool = False) -> Table:
    """Return layouts as a table, in their order; those of one cluster with the step that they are ranked by."""
    table = Table(**_STYLE)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("layout", min_width=24)
    heads = ["GPUs", "step"] if show_gpus else ["step", "with risk"]
    for name in (*heads, "tok/s/GPU", "MFU", "GiB (left)", "OOM"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("bound by", no_wrap=True)
    for number, planned in enumerate(layouts, start=1):
        step, risky = Text(format_seconds(planned.step_s)), Text(format_seconds(planned.expected_s))
        times = [Text(str(planned.layout.num_gpus)), step] if show_gpus else [step, risky]
        cells = [Text(str(number)), Text(planned.name), *times, *_cells(planned)]
        table.add_row(*cells, style="bold" if number == 1 else "")
    return table


def comparison_table(found: ClusterComparison) -> Table:
    """Return the best layout on each cluster, and what the training takes."""
    table = Table(**_STYLE)
    table.add_column("cluster", no_wrap=True)
    table.add_column("best layout", min_width=24)
    for name in ("tok/s", "tok/s/GPU", "OOM", "time", "GPU-hours", "$/GPU-hour", "cost"):
        table.add_column(name, justify="right", no_wrap=True)
    for plan, cost in zip(found.plans, found.costs, strict=True):
        if cost is None:
            table.add_row(plan.cluster.name, "nothing fits")
            continue
        best, dollars = plan.best[0], "?" if cost.dollars is None else format_dollars(cost.dollars)
        speed = (f"{best.tokens_per_s:,.0f}", f"{best.tokens_per_s_per_gpu:,.0f}", f"{best.oom_probability:.0%}")
        price = "?" if cost.price is None else f"{cost.price:.2f}"
        hours = format_gpu_hours(cost.gpu_hours).removesuffix(" GPU-hours")
        table.add_row(plan.cluster.name, best.name, *speed, format_days(cost.seconds), hours, price, dollars)
    return table


def time_table(planned: PlannedLayout) -> Table:
    """Return where the time of a step goes, the largest part first."""
    table = _table("step time", "", "share")
    for name, seconds in sorted(planned.time_parts.items(), key=lambda part: -part[1]):
        if seconds / planned.step_s >= LEAST_SHARE:
            table.add_row(CAUSES.get(name, name), format_seconds(seconds), f"{seconds / planned.step_s:.1%}")
    table.add_row("all", format_seconds(planned.step_s), "", style="bold")
    return table


def stage_table(stages: tuple[StageMemory, ...]) -> Table:
    """Return the memory of each pipeline stage by cause, in GiB; of a long pipeline, its ends and its fullest."""
    shown = stages
    if len(stages) > MAX_STAGES:
        fullest = max(stages, key=lambda stage: stage.total_bytes).stage
        chosen = {0, 1, 2, len(stages) - 2, len(stages) - 1, fullest}
        shown = tuple(stage for stage in stages if stage.stage in chosen)
    names = [name for name in stages[0].parts if any(stage.parts[name] > 0 for stage in stages)]
    table = _table("memory", *(f"stage {stage.stage}" for stage in shown))
    for name in names:
        table.add_row(name, *(format_bytes(stage.parts[name]) for stage in shown))
    table.add_row("all", *(format_bytes(stage.total_bytes) for stage in shown), style="bold")
    return table


def memory_table(planned: PlannedLayout) -> Table:
    """Return the memory of the fullest stage by cause."""
    table = _table("memory", "")
    for name, size in planned.memory_parts.items():
        if size > 0:
            table.add_row(name, format_bytes(size))
    table.add_row("all", format_bytes(planned.memory_bytes), style="bold")
    return table


def _table(first: str, *others: str) -> Table:
    """Return a table of names on the left and figures on the right."""
    table = Table(**_STYLE)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _cells(planned: PlannedLayout) -> list[Text]:
    risk = planned.oom_probability
    return [
        Text(f"{planned.tokens_per_s_per_gpu:,.0f}"),
        Text(f"{planned.mfu:.1%}"),
        Text(f"{planned.memory_bytes / GIB:.1f} ({planned.headroom_bytes / GIB:.1f})"),
        Text(f"{risk:.0%}", style="green" if risk < LOW_RISK else "yellow" if risk < HIGH_RISK else "red"),
        Text(planned.bound),
    ]


MAX_WIDTH = 110
"""Columns that a line has at most; a row of the table goes into them."""
MAX_PROBLEMS = 8


class PlanReport:
    """Plans, explanations and comparisons on a console."""

    def __init__(self, console: Console) -> None:
        self._console = console if console.is_terminal else Console(file=console.file, width=MAX_WIDTH)
        self._width = min(self._console.width, MAX_WIDTH)

    def answer(
        self,
        plan: Plan,
        cost: TrainingCost | None = None,
        enough_gpus: int | None = None,
        ways: Iterable[WayOut] = (),
    ) -> None:
        """Print the best layout and what its training takes, or what would do where nothing fits."""
        self.say(_job_title(plan, f" on {plan.cluster.name}"))
        if plan.best:
            self.say(f"best: {plan.best[0].name}: {plan.best[0].figures}")
        else:
            enough = f": it takes {enough_gpus} GPUs of this kind" if enough_gpus else ""
            self.say(f"none of {count(plan.num_considered, 'layout')} fits in memory{enough}")
            for line in way_lines(ways):
                self.say(line)
        if cost is not None:
            self.say(cost.line)

    def plan(self, plan: Plan, stages: tuple[StageMemory, ...], *, in_full: bool) -> None:
        """Print the best layouts, what the best one's step and memory are made of, and what nearly made it.

        `in_full` also prints the tables of the best one, and what was dropped.
        """
        if plan.best:
            self._console.print()
            self._show(layout_table(plan.best))
            if plan.num_tied > 1:
                within = f"predicted within {plan.tied_within:.1%} of one another, too little to tell apart"
                self.say(f"1 to {plan.num_tied} tie ({within}): the simplest is listed first")
            for assumption in plan.assumptions:
                self.say(f"assumed: {assumption}")
            if in_full:
                self._breakdown(plan.best[0], stages)
            else:
                self._parts(plan.best[0])
        self._near_misses(plan)
        self._dropped(plan, in_full=in_full)

    def explanation(self, explanation: Explanation, cost: TrainingCost | None = None) -> None:
        """Print one layout in full."""
        for reason in explanation.broken:
            self.say(f"breaks a rule: {reason}")
        planned = explanation.planned
        if planned is None:
            return
        self._show(layout_table([planned]))
        if cost is not None:
            self.say(cost.line)
        if explanation.verdict:
            self._console.print()
            self.say(f"{planned.name}: {explanation.verdict}")
        self._breakdown(planned, explanation.stages)
        self._steps(explanation)

    def pareto(self, points: list[PlannedLayout]) -> None:
        """Print the layouts that no other beats in time, memory and GPUs together."""
        self._console.print()
        self.say("no layout is better than these in step time, memory and GPUs together:")
        self._show(layout_table(points, show_gpus=True))

    def what_if(self, what_if: WhatIf, cost: TrainingCost | None = None) -> None:
        """Print what a change brings, and what the training takes after it."""
        self._console.print()
        self.say(f"what if {what_if.text}:")
        before, after = what_if.before.best[:1], what_if.after.best[:1]
        self._show(layout_table([*before, *after], show_gpus=True))
        if what_if.hint:
            self.say(f"hint: {what_if.hint}")
        if what_if.gain is None:
            self.say("nothing fits " + ("before" if not before else "after") + " the change")
            return
        old, new = before[0], after[0]
        per_gpu = format_gain(new.tokens_per_s_per_gpu / old.tokens_per_s_per_gpu - 1)
        speeds = f"{old.tokens_per_s:,.0f} -> {new.tokens_per_s:,.0f} tokens/s"
        self.say(f"gain: {format_gain(what_if.gain)} ({speeds}), {per_gpu} per GPU")
        self.say(f"change: {changes(old.layout, new.layout)}")
        if cost is not None:
            self.say(cost.line)

    def comparison(self, found: ClusterComparison) -> None:
        """Print which cluster is fastest and which cheapest, and the best layout on each."""
        plan, cost = found.plans[0], next((cost for cost in found.costs if cost is not None), None)
        self.say(_job_title(plan))
        if cost is None or found.fastest is None:
            self.say("nothing fits on any of them")
            return
        tokens = format_tokens(cost.tokens)
        costs = dict(zip((plan.cluster.name for plan in found.plans), found.costs, strict=True))
        known = " with a known price:" if found.cheapest_below else ":"
        for kind, best in (("fastest: ", found.fastest), (f"cheapest{known}", found.cheapest)):
            if best is not None and (takes := costs[best.cluster.name]) is not None:
                dollars = f", {format_dollars(takes.dollars)}" if takes.dollars is not None else ""
                self.say(f"{kind} {best.cluster.name}, {format_days(takes.seconds)}{dollars} for {tokens} tokens")
        for name, price in found.cheapest_below.items():
            below = f"cheapest below {format_dollars(price)} a GPU-hour"
            self.say(f"no public price of {name} is known: it would be {below} (--price)")
        self._console.print()
        self._show(comparison_table(found))
        if any(cost is not None and cost.is_public and cost.price is not None for cost in found.costs):
            self.say(f"prices are public ones of {PRICES_OF}, on demand: --price gives yours")

    def _parts(self, planned: PlannedLayout) -> None:
        time, memory = planned.time_parts, planned.memory_parts
        seconds = [
            (part, CAUSES.get(name, name)) for name, part in time.items() if part / planned.step_s >= LEAST_SHARE
        ]
        size = [(part, name) for name, part in memory.items() if part >= GIB / 2]
        self._console.print()
        self._range(planned)
        self.say("  step:   " + ", ".join(f"{name} {format_seconds(part)}" for part, name in sorted(seconds)[::-1]))
        self.say("  memory: " + ", ".join(f"{name} {part / GIB:.1f}" for part, name in sorted(size)[::-1]) + " GiB")

    def _breakdown(self, planned: PlannedLayout, stages: tuple[StageMemory, ...]) -> None:
        self._console.print()
        self._range(planned)
        if planned.balanced_bytes is not None:
            needs = f"it needs {format_bytes(planned.memory_bytes)}, and {format_bytes(planned.balanced_bytes)}"
            load = f"{planned.busiest_load:.2f} times the mean tokens"
            self.say(f"the busiest expert-parallel rank of a layer has {load}: {needs} with balanced routing")
        self._show(time_table(planned))
        self._console.print()
        self._show(stage_table(stages) if len(stages) > 1 else memory_table(planned))

    def _range(self, planned: PlannedLayout) -> None:
        low, high = planned.step_interval_s
        least, most = planned.memory_interval_bytes
        step = f"{format_seconds(low)} to {format_seconds(high)}"
        memory = f"{format_bytes(least)} to {format_bytes(most)} of {format_bytes(planned.capacity_bytes)}"
        self.say(f"{planned.name}: 90% of such runs take {step} a step and {memory}")

    def _near_misses(self, plan: Plan) -> None:
        if not plan.near_misses:
            return
        self._console.print()
        self.say("faster, but ruled out:" if plan.best else "nearest to fitting:")
        for miss in plan.near_misses:
            unit = "tokens/s" if miss.obstacle is Obstacle.BATCH else "speed"
            gain = f"{format_gain(miss.gain)} {unit}; " if math.isfinite(miss.gain) else ""
            self.say(f"  {miss.planned.name}: {miss.reason}")
            self.say(f"    {gain}{miss.hint}")

    def _dropped(self, plan: Plan, *, in_full: bool) -> None:
        self._console.print()
        fits = f"{plan.num_fitting:,} fit (OOM below {plan.risk:.0%})"
        ranked = f"{fits}, ranked with that risk" if plan.best else fits
        self.say(f"{count(plan.num_considered, 'layout')} considered, {ranked}{'' if in_full else '; -v says more'}")
        if not in_full:
            return
        if plan.best:
            self.say("  listed: the best of each split of the model and its tokens; --fix shows its variants")
        for cut in plan.cuts[:MAX_PROBLEMS]:
            self.say(f"  dropped {count(cut.count, cut.what)}: {cut.example}")
        for reason in plan.left_out:
            self.say(f"  not tried: {reason}")

    def _steps(self, explanation: Explanation) -> None:
        self._console.print()
        if not explanation.steps:
            if not explanation.broken:
                self.say("no single change makes it " + ("better" if explanation.fits else "fit"))
            return
        self.say("single changes that make it better:" if explanation.fits else "single changes that make it fit:")
        for step in explanation.steps:
            self.say(f"  {step.change}: {format_seconds(step.planned.step_s)} ({_worth(step)})")

    def _show(self, table: Table) -> None:
        """Print a table without the blanks that would fill its last column."""
        options = self._console.options.update(width=self._width)
        for line in self._console.render_lines(table, options, pad=False):
            text = Text.assemble(*((segment.text, segment.style or "") for segment in line))
            text.rstrip()
            self._console.print(text, soft_wrap=True)

    def say(self, line: str) -> None:
        """Print a line, and where it is too long the rest of it further in."""
        start = line[: len(line) - len(line.lstrip())]
        wrapped = textwrap.wrap(
            line.strip(),
            self._width,
            initial_indent=start,
            subsequent_indent=f"{start}    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for part in wrapped:
            self._console.print(Text(part), soft_wrap=True)


def _worth(step: Step) -> str:
    gain = format_gain(step.gain) if math.isfinite(step.gain) else "now fits"
    if abs(step.gain) <= LEAST_GAIN:
        gain = f"no slower, saves {format_bytes(step.saved_bytes)}"
    return f"{gain}, {step.planned.oom_probability:.0%} OOM"


def _job_title(plan: Plan, where: str = "") -> str:
    size = f"{plan.model.num_params / 1e9:.1f}B parameters"
    job = f"batch {plan.global_batch}, sequence {plan.job.seq_len}, {plan.job.precision}, {plan.job.framework.name}"
    job += "".join(f", {each}" for each in (plan.job.way, "reference model" * plan.job.reference) if each)
    return f"{plan.model.name} ({size}){where}: {job}"


def write_emission(emission: Emission, folder: Path) -> None:
    """Write the file into a folder, a script so that it can be run."""
    path = folder / emission.file_name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() or (path.exists() and not path.is_file()):
            problem = f"--output: {path} is a link or no file, and is not written to"
            raise UsageError(problem, hint="give another folder")
        write_output(path, emission.text)
    except OSError as error:
        problem = f"--output {folder} cannot be written ({error.strerror})"
        raise UsageError(problem, hint="give another folder") from None
    if path.suffix == ".sh":
        path.chmod(path.stat().st_mode | 0o111)


def print_emission(emission: Emission, folder: Path | None) -> None:
    """Print the notes and where the file is; without a folder the file alone goes to stdout."""
    to_stderr = folder is None
    click.echo(err=to_stderr)
    for note in emission.notes:
        click.echo(f"note: {note}", err=to_stderr)
    if folder is None:
        click.echo(emission.text, nl=False)
    else:
        click.echo(f"written: {folder / emission.file_name}")
