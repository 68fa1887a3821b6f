"""How good the choice of a layout is: over whole measured landscapes, a table of best layouts, and a size guide."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from held_out import HeldOutMemory, Judged, given_it_fits, usable_memory

from zenith_tune.calibrate.calibration_file import default_calibration
from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.calibrate.time_family import family_of
from zenith_tune.calibrate.time_fit import run_cluster
from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.estimates.memory_risk import MemoryRisk, expected_step, slowdown
from zenith_tune.layouts.layout import Layout
from zenith_tune.planner.plan import PlannedLayout
from zenith_tune.planner.planner import RISK, Planner
from zenith_tune.planner.size_guide import SEQ_LEN, TABLE, GuideRow

PLAYBOOK = "ultrascale_playbook"
LEAST_LAYOUTS = 3
"""Fewer measured layouts are no landscape to choose from."""
AXES = ("tp", "pp", "dp", "zero", "mbs")


def choice(speed: list[Judged], memory: list[HeldOutMemory]) -> dict[str, Any]:
    """Return how far the layout ranked first lies behind the measured best, and how alike both orders are."""
    held = {id(each.run): each for each in memory}
    places: dict[tuple[str, str], list[Judged]] = defaultdict(list)
    for item in speed:
        if item.run.source == PLAYBOOK:
            places[item.run.landscape].append(item)
    found = {(items[0].run.model_name, place[1]): _one(items, held) for place, items in places.items()}
    judged = {place: result for place, result in found.items() if result is not None}
    if not judged:
        return {"landscapes": 0, **dict.fromkeys(("first_pick_median_pct", "first_pick_mean_pct", "spearman_median"))}
    behind = [result.behind for result in judged.values()]
    return {
        "landscapes": len(judged),
        "first_pick_median_pct": round(100 * float(np.median(behind)), 2),
        "first_pick_mean_pct": round(100 * float(np.mean(behind)), 2),
        "spearman_median": round(float(np.median([result.spearman for result in judged.values()])), 3),
        "by_landscape": {" on ".join(place): result.summary() for place, result in sorted(judged.items())},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """The outcome of a choice in one landscape."""

    layouts: int
    behind: float
    """How much longer the step of the layout ranked first is than the best, as a share."""
    spearman: float
    best_ratio: float
    """The best layout's measured step over its predicted one."""
    near_ratio: float
    """The median of the same over the layouts that are one change away from it."""
    pick_ratio: float
    """The same of the layout ranked first."""

    def summary(self) -> dict[str, Any]:
        """Return it with rounded figures."""
        return {
            "layouts": self.layouts,
            "first_pick_pct": round(100 * self.behind, 1),
            "spearman": round(self.spearman, 3),
            "best_over_predicted": round(self.best_ratio, 2),
            "near_over_predicted": round(self.near_ratio, 2),
            "pick_over_predicted": round(self.pick_ratio, 2),
        }


def _one(items: list[Judged], held: dict[int, HeldOutMemory]) -> _Choice | None:
    """Return what came of choosing in one landscape; repeats of a layout count as one."""
    layouts: dict[tuple[int | bool, ...], list[Judged]] = defaultdict(list)
    for item in items:
        layouts[tuple(item.run.layout[axis] for axis in AXES)].append(item)
    if len(layouts) < LEAST_LAYOUTS:
        return None
    measured = np.array([np.median([item.run.step_s or np.nan for item in repeats]) for repeats in layouts.values()])
    predicted = np.array([repeats[0].predicted_s for repeats in layouts.values()])
    expected = np.array([_expected_s(repeats[0], held.get(id(repeats[0].run))) for repeats in layouts.values()])
    fits = np.array([_fits(held.get(id(repeats[0].run))) for repeats in layouts.values()])
    first = int(np.argmin(np.where(fits, expected, np.inf if fits.any() else expected)))
    best, ratios = int(measured.argmin()), measured / predicted
    return _Choice(
        layouts=len(layouts),
        behind=float(measured[first] / measured[best] - 1),
        spearman=_spearman(predicted, measured),
        best_ratio=float(ratios[best]),
        near_ratio=float(np.median(ratios[_near(list(layouts), best)])),
        pick_ratio=float(ratios[first]),
    )


def _near(layouts: list[tuple[int | bool, ...]], best: int) -> Any:
    """Tell which other layouts differ from one in a single change: of the optimizer, of a size by 2, or of a pair."""
    sizes = np.log2(np.maximum(np.array(layouts, np.float64), 0.5))
    distance = np.abs(sizes - sizes[best]).sum(axis=1)
    near = (distance > 0) & (distance <= 2)
    return near if near.any() else distance > 0


def _expected_s(item: Judged, held: HeldOutMemory | None) -> float:
    """Return what the planner ranks by, of a layout of which is known that it ran."""
    if held is None:
        return item.predicted_s
    thrash = family_of(item.run.framework).start.thrash
    full = slowdown(np.array([held.device_bytes]), usable_memory(item.run), thrash)
    risk = MemoryRisk(oom=np.array([1 - held.fits_probability]), tight=np.array([held.tight_probability]))
    return float(expected_step(item.predicted_s / full, given_it_fits(risk), thrash)[0])


def _fits(held: HeldOutMemory | None) -> bool:
    return held is None or 1 - held.fits_probability < RISK


def _spearman(a: Any, b: Any) -> float:
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: Any) -> Any:
    """Return ranks, equal values sharing their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]


def folding_ranks(runs: list[MeasuredRun]) -> list[dict[str, Any]]:
    """Return the rank, among all that we plan, of the best layouts of the tables of MoE Parallel Folding.

    They are the folded ones, wherever the tables have one: it is faster than every other strategy beside it.
    """
    tables = [run for run in runs if run.source == "moe_folding" and run.model is not None and run.step_s]
    return [_rank(run) for run in tables if "Folding" in run.stated_framework]


def _rank(run: MeasuredRun) -> dict[str, Any]:
    assert run.model is not None and run.seq_len
    job = JobSpec(seq_len=run.seq_len, framework=load_framework("megatron"), precision="bf16")
    planner = Planner(run.model, run_cluster(run), job, default_calibration("megatron"))
    plan = planner.plan(int(run.layout["gbs"]), top=10_000)
    axes = [axis for axis in ("tp", "pp", "cp", "ep", "etp") if axis in run.layout]
    wanted = tuple(run.layout[axis] for axis in axes)
    order = list(dict.fromkeys(tuple(getattr(item.layout, axis) for axis in axes) for item in plan.best))
    steps = {tuple(getattr(item.layout, axis) for axis in axes): item.step_s for item in reversed(plan.best)}
    return {
        "model": run.model_name,
        "gpus": run.num_gpus,
        "seq": run.seq_len,
        "gbs": run.layout["gbs"],
        "layout": " ".join(f"{axis.upper()}{value}" for axis, value in zip(axes, wanted, strict=True)),
        "rank": order.index(wanted) + 1 if wanted in order else None,
        "of": len(order),
        "behind_pct": round(100 * (steps[wanted] / plan.best[0].step_s - 1), 1) if wanted in steps else None,
    }


GUIDE_SHAPES = (
    (32, 4096, 11008, 32, 32),
    (40, 5120, 13824, 40, 40),
    (44, 6144, 16384, 48, 48),
    (60, 7168, 19456, 56, 56),
    (80, 8192, 28672, 64, 8),
    (96, 12288, 32768, 96, 96),
)
"""A Llama-like shape for each row of the guide: layers, hidden size, feed-forward width, heads, key-value heads."""


def size_guide() -> list[dict[str, Any]]:
    """Return, for each row of the guide, both choices and what ours gains."""
    return [_compare(row, *shape) for row, shape in zip(TABLE, GUIDE_SHAPES, strict=True)]


def _compare(row: GuideRow, layers: int, hidden: int, ffn: int, heads: int, kv: int) -> dict[str, Any]:
    """Compare both choices at the micro-batch that is kindest to the guide's."""
    model = ModelSpec(
        name=f"{row.billions:g}B",
        num_layers=layers,
        hidden=hidden,
        ffn_hidden=ffn,
        num_heads=heads,
        num_kv_heads=kv,
        head_dim=hidden // heads,
        vocab=32000,
    )
    job = JobSpec(seq_len=SEQ_LEN, framework=load_framework("megatron"))
    planner = Planner(model, load_cluster(f"a100-80x{row.num_gpus}"), job, default_calibration("megatron"))
    found = [_compare_at(planner, row, mbs) for mbs in (1, 2, 4, 8)]
    return max(found, key=lambda result: (result["guide_fits"], -result["gain_pct"]))


def _compare_at(planner: Planner, row: GuideRow, mbs: int) -> dict[str, Any]:
    batch = row.dp * row.micro_batches * mbs
    guide, ours = _guide(planner, row, batch, mbs), planner.plan(batch, top=1).best[0]
    return {
        "model": planner.model.name,
        "gpus": row.num_gpus,
        "batch": batch,
        "guide": guide.name,
        "guide_s": guide.step_s,
        "guide_fits": guide.oom_probability < 0.5,
        "ours": ours.name,
        "ours_s": ours.step_s,
        "gain_pct": round(100 * (guide.step_s / ours.step_s - 1), 1),
    }


def _guide(planner: Planner, row: GuideRow, batch: int, mbs: int) -> PlannedLayout:
    """Return the guide's layout in its best variant: it says nothing of recomputation or sharding."""
    variants = [
        Layout(
            num_gpus=row.num_gpus,
            tp=row.tp,
            pp=row.pp,
            micro_batch=mbs,
            global_batch=batch,
            zero=1,
            recompute=recompute,
            recompute_layers=1 if recompute == "full/uniform" else 0,
            sequence_parallel=row.tp > 1,
        )
        for recompute in ("none", "selective", "full/uniform")
    ]
    return min(planner.evaluate(variants), key=lambda planned: planned.step_s)
