"""How good the choice of a layout is: over landscapes that were measured whole, and over a table of best layouts."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from zenith_tune.calibrate.calibration_file import default_calibration
from zenith_tune.calibrate.holdout import HeldOutMemory, Judged
from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.calibrate.time_fit import run_cluster
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.planner.planner import RISK, Planner

SOURCE = "ultrascale_playbook"
LEAST_LAYOUTS = 3
"""Fewer measured layouts are no landscape to choose from."""
AXES = ("tp", "pp", "dp", "zero", "mbs")


def choice(speed: list[Judged], memory: list[HeldOutMemory]) -> dict[str, Any]:
    """Return how far the layout ranked first lies behind the measured best, and how alike both orders are."""
    risk = {id(held.run): 1 - held.fits_probability for held in memory}
    places: dict[tuple[str, str], list[Judged]] = defaultdict(list)
    for item in speed:
        if item.run.source == SOURCE:
            places[item.run.landscape].append(item)
    found = {(items[0].run.model_name, place[1]): _one(items, risk) for place, items in places.items()}
    judged = {place: result for place, result in found.items() if result is not None}
    if not judged:
        return {"landscapes": 0, **dict.fromkeys(("first_pick_median_pct", "first_pick_mean_pct", "spearman_median"))}
    behind = [result[0] for result in judged.values()]
    return {
        "landscapes": len(judged),
        "first_pick_median_pct": round(100 * float(np.median(behind)), 2),
        "first_pick_mean_pct": round(100 * float(np.mean(behind)), 2),
        "spearman_median": round(float(np.median([result[1] for result in judged.values()])), 3),
        "by_landscape": {
            " on ".join(place): {"layouts": n, "first_pick_pct": round(100 * gap, 1), "spearman": round(rho, 3)}
            for place, (gap, rho, n) in sorted(judged.items())
        },
    }


def _one(items: list[Judged], risk: dict[int, float]) -> tuple[float, float, int] | None:
    """Return gap, rank correlation and number of layouts of one landscape; repeats of a layout count as one."""
    layouts: dict[tuple[int | bool, ...], list[Judged]] = defaultdict(list)
    for item in items:
        layouts[tuple(item.run.layout[axis] for axis in AXES)].append(item)
    if len(layouts) < LEAST_LAYOUTS:
        return None
    measured = np.array([np.median([item.run.step_s or np.nan for item in repeats]) for repeats in layouts.values()])
    predicted = np.array([repeats[0].predicted_s for repeats in layouts.values()])
    fits = np.array([risk.get(id(repeats[0].run), 0.0) < RISK for repeats in layouts.values()])
    first = int(np.argmin(np.where(fits, predicted, np.inf if fits.any() else predicted)))
    return float(measured[first] / measured.min() - 1), _spearman(predicted, measured), len(layouts)


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
