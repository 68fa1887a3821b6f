"""A plan for people, on a terminal."""

from __future__ import annotations

import math
import textwrap

from rich.console import Console
from rich.table import Table
from rich.text import Text

from zenith_tune.planner.explanation import Explanation, StageMemory, Step
from zenith_tune.planner.plan import Obstacle, Plan
from zenith_tune.planner.what_if import WhatIf
from zenith_tune.planning.changes import changes
from zenith_tune.planning.planned_layout import PlannedLayout
from zenith_tune.planning.steps import LEAST_GAIN
from zenith_tune.report.plan_tables import layout_table, memory_table, stage_table, time_table
from zenith_tune.units import count, format_bytes, format_gain, format_seconds, format_spread

MAX_WIDTH = 100
"""Columns that a line has at most; a row of the table goes into them."""
MAX_LAWS = 8


class PlanReport:
    """Print plans, explanations and comparisons."""

    def __init__(self, console: Console | None = None) -> None:
        console = console or Console(highlight=False)
        self._console = console if console.is_terminal else Console(file=console.file, width=MAX_WIDTH)
        self._width = min(self._console.width, MAX_WIDTH)

    def plan(self, plan: Plan, stages: tuple[StageMemory, ...], enough_gpus: int | None = None) -> None:
        """Print the best layouts, the best one in full, what nearly made it and what was dropped."""
        self._say(_title(plan))
        if plan.best:
            self._console.print()
            self._show(layout_table(plan.best))
            self._breakdown(plan.best[0], stages)
        else:
            enough = f": it takes {enough_gpus} GPUs of this kind" if enough_gpus else ""
            self._say(f"none of {count(plan.num_considered, 'layout')} fits in memory{enough}")
        self._near_misses(plan)
        self._dropped(plan)

    def explanation(self, explanation: Explanation) -> None:
        """Print one layout in full."""
        for reason in explanation.broken:
            self._say(f"breaks a rule: {reason}")
        planned = explanation.planned
        if planned is None:
            return
        self._show(layout_table([planned]))
        if explanation.verdict:
            self._console.print()
            self._say(f"{planned.name}: {explanation.verdict}")
        self._breakdown(planned, explanation.stages)
        self._steps(explanation)

    def more(self, points: list[PlannedLayout] | None, what_if: WhatIf | None) -> None:
        """Print what was asked for beside the plan."""
        if points is not None:
            self.pareto(points)
        if what_if is not None:
            self.what_if(what_if)

    def pareto(self, points: list[PlannedLayout]) -> None:
        """Print the layouts that no other beats in time, memory and GPUs together."""
        self._console.print()
        self._say("no layout is better than these in step time, memory and GPUs together:")
        self._show(layout_table(points, show_gpus=True))

    def what_if(self, what_if: WhatIf) -> None:
        """Print what a change brings."""
        self._console.print()
        self._say(f"what if {what_if.text}:")
        before, after = what_if.before.best[:1], what_if.after.best[:1]
        self._show(layout_table([*before, *after], show_gpus=True))
        if what_if.hint:
            self._say(f"hint: {what_if.hint}")
        if what_if.gain is None:
            self._say("nothing fits " + ("before" if not before else "after") + " the change")
            return
        old, new = before[0], after[0]
        per_gpu = format_gain(new.tokens_per_s_per_gpu / old.tokens_per_s_per_gpu - 1)
        speeds = f"{old.tokens_per_s:,.0f} -> {new.tokens_per_s:,.0f} tokens/s"
        self._say(f"gain: {format_gain(what_if.gain)} ({speeds}), {per_gpu} per GPU")
        self._say(f"change: {changes(old.layout, new.layout)}")

    def _breakdown(self, planned: PlannedLayout, stages: tuple[StageMemory, ...]) -> None:
        low, high = planned.step_interval_s
        least, most = planned.memory_interval_bytes
        self._console.print()
        step = f"{format_seconds(low)} to {format_seconds(high)}"
        memory = f"{format_bytes(least)} to {format_bytes(most)} of {format_bytes(planned.capacity_bytes)}"
        self._say(f"{planned.name}: 90% of such runs take {step} a step and {memory}")
        self._show(time_table(planned))
        self._console.print()
        self._show(stage_table(stages) if len(stages) > 1 else memory_table(planned))

    def _near_misses(self, plan: Plan) -> None:
        if not plan.near_misses:
            return
        self._console.print()
        self._say("faster, but not chosen:" if plan.best else "nearest to fitting:")
        for miss in plan.near_misses:
            unit = "tokens/s" if miss.obstacle is Obstacle.BATCH else "speed"
            gain = f"{format_gain(miss.gain)} {unit}; " if math.isfinite(miss.gain) else ""
            self._say(f"  {miss.planned.name}: {miss.reason}")
            self._say(f"    {gain}{miss.cure}")

    def _dropped(self, plan: Plan) -> None:
        self._console.print()
        fits = f"{plan.num_fitting:,} fit (less than {plan.risk:.0%} likely to run out of memory)"
        self._say(f"{count(plan.num_considered, 'layout')} considered, {fits}")
        for cut in plan.cuts[:MAX_LAWS]:
            self._say(f"  dropped {count(cut.count, cut.what)}: {cut.example}")
        for reason in plan.left_out:
            self._say(f"  not tried: {reason}")

    def _steps(self, explanation: Explanation) -> None:
        self._console.print()
        if not explanation.steps:
            if not explanation.broken:
                self._say("no single change makes it " + ("better" if explanation.fits else "fit"))
            return
        self._say("single changes that make it better:" if explanation.fits else "single changes that make it fit:")
        for step in explanation.steps:
            self._say(f"  {step.change}: {format_seconds(step.planned.step_s)} ({_worth(step)})")

    def _show(self, table: Table) -> None:
        """Print a table without the blanks that would fill its last column."""
        options = self._console.options.update(width=self._width)
        for line in self._console.render_lines(table, options, pad=False):
            text = Text.assemble(*((segment.text, segment.style or "") for segment in line))
            text.rstrip()
            self._console.print(text, soft_wrap=True)

    def _say(self, line: str) -> None:
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


def _title(plan: Plan) -> str:
    size = f"{plan.model.num_params / 1e9:.1f}B parameters"
    job = f"batch {plan.global_batch}, sequence {plan.job.seq_len}, {plan.job.precision}, {plan.job.framework.name}"
    spread = f"; step{format_spread(plan.best[0].step_spread)}" if plan.best else ""
    return f"{plan.model.name} ({size}) on {plan.cluster.name}: {job}{spread}"
