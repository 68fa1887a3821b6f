"""The size guide for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from zenith_tune.describe.topology import tensor_reason
from zenith_tune.planner.cost import TrainingCost
from zenith_tune.planner.plan import PlannedLayout
from zenith_tune.planner.size_guide import GuideComparison, GuideRow
from zenith_tune.planner.ways_out import way_lines
from zenith_tune.report.plan.json import cost_object, planned_object, way_out_object
from zenith_tune.study.files import Json
from zenith_tune.units import format_gain

COLUMNS = ("model", "GPUs", "TP", "PP", "DP", "micro-batches")


def table_lines(rows: Sequence[GuideRow]) -> Iterator[str]:
    """Yield the whole table."""
    yield "starting points for bf16, 2K sequences and A100 80 GB:"
    yield "  ".join(f"{name:>5}" for name in COLUMNS)
    for row in rows:
        cells = (f"{row.billions:g}B", row.num_gpus, row.tp, row.pp, row.dp, row.micro_batches)
        widths = (max(len(name), 5) for name in COLUMNS)
        yield "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    yield "zenithtune guide 70B --gpus 64 says what the planner makes of a row"


def comparison_lines(found: GuideComparison, cost: TrainingCost | None = None) -> Iterator[str]:
    """Yield the guide's layout, the planner's, and why they differ."""
    plan, best = found.plan, found.best
    size = f"{plan.model.name} ({plan.model.num_params / 1e9:.1f}B parameters)"
    yield f"{size} on {plan.cluster.name}: batch {plan.global_batch}, sequence {plan.job.seq_len}, {plan.job.precision}"
    yield from (f"  rule: {rule}" for rule in found.guide.rules)
    if not found.guide.is_planned:
        yield f"guide    {_named(found.planned)}"
    yield from (f"  breaks a rule: {reason}" for reason in found.broken)
    if best is None:
        enough = f"; it takes {found.enough_gpus} GPUs of this kind" if found.enough_gpus else ""
        yield f"planner  nothing fits; the guide's layout {found.verdict}{enough}"
        yield from way_lines(found.ways_out)
        return
    yield f"planner  {_named(best)}"
    if cost is not None:
        yield f"  {cost.line}"
    if not found.guide.is_planned:
        yield _verdict(found)
    yield from (f"  {reason}" for reason in (*found.reasons, tensor_reason(plan.cluster)))


def comparison_object(found: GuideComparison, cost: TrainingCost | None = None) -> Json:
    """Return both layouts as a plain object."""
    plan, best = found.plan, found.best
    return {
        "model": plan.model.name,
        "num_params": plan.model.num_params,
        "cluster": plan.cluster.name,
        "seq_len": plan.job.seq_len,
        "precision": plan.job.precision,
        "global_batch": plan.global_batch,
        "row": asdict(found.guide.row),
        "rules": list(found.guide.rules),
        "guide": {
            **planned_object(found.planned),
            "fits": not found.verdict,
            "broken_rules": list(found.broken),
        },
        "planner": planned_object(best) if best else None,
        **({"cost": cost_object(cost)} if cost is not None else {}),
        "enough_gpus": found.enough_gpus,
        "gain": found.gain,
        "change": found.change or None,
        "reasons": found.reasons,
        "ways_out": [way_out_object(way) for way in found.ways_out],
    }


def _verdict(found: GuideComparison) -> str:
    if found.change == "nothing":
        return "the planner chooses the same"
    if found.gain is None:
        return f"the planner's fits ({found.change})"
    if found.gain < 0:
        risk = "less likely to run out of memory"
        return f"the planner's is {format_gain(found.gain)[1:]} slower, but {risk} ({found.change})"
    return f"the planner's is {format_gain(found.gain)[1:]} faster ({found.change})"


def _named(planned: PlannedLayout) -> str:
    return f"{planned.name}: {planned.figures}"
