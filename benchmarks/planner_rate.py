"""Measures the planner: layouts per CPU-second with memory and time, whole spaces, and that many are as good as one.

Every row of a piece is checked against the same layout estimated alone, for random layouts: the arrays must give what
the formulas give one at a time.

    python benchmarks/planner_rate.py
    python benchmarks/planner_rate.py --json --write
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
from places import RESULTS

from zenith_tune.calibrate.calibration_file import default_calibration
from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.estimates.workload import Estimate
from zenith_tune.layouts.candidates import Candidates
from zenith_tune.layouts.layout_batch import LayoutBatch
from zenith_tune.layouts.search_space import SearchSpace
from zenith_tune.planner.limits import IMBALANCE
from zenith_tune.planner.planner import Planner

SEQ_LEN = 8192
FRAMEWORK = "megatron"
CHECKED, CHECKED_PIECES = 200, 10
"""Random layouts per case that are estimated alone, and the pieces that they are taken from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One whole space to plan."""

    model: str
    cluster: str
    global_batch: int
    space: str


CASES = (
    Case(model="llama3-70b", cluster="h100x64", global_batch=512, space="default"),
    Case(model="llama3-70b", cluster="h100x64", global_batch=512, space="all"),
    Case(model="llama3-405b", cluster="h100x16384", global_batch=2048, space="default"),
    Case(model="llama3-405b", cluster="h100x16384", global_batch=2048, space="all"),
    Case(model="qwen3-235b-a22b", cluster="h100x256", global_batch=1024, space="default"),
)


def planner_for(case: Case) -> Planner:
    """Return the planner of a case."""
    cluster, framework = load_cluster(case.cluster), load_framework(FRAMEWORK)
    job = JobSpec(seq_len=SEQ_LEN, framework=framework, imbalance=IMBALANCE)
    return Planner(load_model(case.model), cluster, job, default_calibration(framework.name))


def pieces(planner: Planner, case: Case) -> list[LayoutBatch]:
    """Return all layouts of a case."""
    space = SearchSpace.named(case.space)
    return list(Candidates(planner.model, planner.job, planner.cluster.num_gpus, case.global_batch, space).batches())


def estimate_rate(planner: Planner, batches: list[LayoutBatch]) -> float:
    """Return layouts per CPU-second for the estimate of memory and time alone."""
    planner.estimate(batches[0])
    start = time.process_time()
    for batch in batches:
        planner.estimate(batch)
    return sum(len(batch) for batch in batches) / (time.process_time() - start)


def largest_difference(planner: Planner, batches: list[LayoutBatch], seed: int = 1) -> float:
    """Return the largest relative difference between layouts in a piece and the same alone."""
    random, worst = np.random.default_rng(seed), 0.0
    for index in random.integers(len(batches), size=CHECKED_PIECES):
        batch = batches[index]
        found = planner.estimate(batch)
        for row in random.integers(len(batch), size=CHECKED // CHECKED_PIECES):
            together, alone = numbers(found, row), numbers(planner.estimate(batch.take(np.array([row]))), 0)
            worst = max(worst, float(np.max(np.abs(together - alone) / np.maximum(np.abs(alone), 1e-12))))
    return worst


def numbers(found: Estimate, row: int | np.int64) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return every number of one row: totals and all parts."""
    columns = [found.step_s, found.memory_bytes, found.oom_probability, found.step_spread, found.memory_spread]
    columns += [*found.time_parts.values(), *found.memory_parts.values()]
    return np.array([column[row] for column in columns])


def reference_cpu_s() -> float:
    """Return the CPU seconds of a fixed piece of work on arrays: about 0.07 where nothing else runs."""
    values = np.linspace(1.0, 2.0, 20_000)
    start = time.process_time()
    for _ in range(300):
        np.maximum(np.sqrt(values) * values + values, 1.5)
        dict.fromkeys(map(str, range(200)))
    return time.process_time() - start


def measure(case: Case) -> dict[str, Any]:
    """Plan a whole space, and return what it cost and whether it is right."""
    planner = planner_for(case)
    before_s = reference_cpu_s()
    start = time.process_time()
    plan = planner.plan(case.global_batch, space=SearchSpace.named(case.space))
    cpu_s = time.process_time() - start
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    batches = pieces(planner, case)
    rate = estimate_rate(planner, batches)
    return {
        "model": case.model,
        "cluster": case.cluster,
        "space": case.space,
        "layouts": plan.num_considered,
        "plan_cpu_s": cpu_s,
        "plan_layouts_per_cpu_s": plan.num_considered / cpu_s,
        "estimate_layouts_per_cpu_s": rate,
        "reference_cpu_s": (before_s + reference_cpu_s()) / 2,
        "peak_rss_mib": peak_mib,
        "checked": CHECKED,
        "largest_relative_difference": largest_difference(planner, batches),
        "best": plan.best[0].name if plan.best else None,
    }


def in_a_process_of_its_own(index: int) -> dict[str, Any]:
    """Measure one case apart, so that its peak memory is its own."""
    done = subprocess.run([sys.executable, __file__, "--case", str(index)], check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main() -> None:
    """Print the figures, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--write", action="store_true", help="write a dated file beside this one")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is not None:
        print(json.dumps(measure(CASES[options.case])))
        return
    rows = [in_a_process_of_its_own(index) for index in range(len(CASES))]
    figures = {"date": date.today().isoformat(), "python": platform.python_version(), "cases": rows}
    if options.json:
        print(json.dumps(figures))
    else:
        print_table(rows)
    if options.write:
        path = RESULTS / f"planner-rate-{figures['date']}.json"
        path.write_text(json.dumps(figures, indent=1) + "\n")


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print one line per case."""
    names = f"{'model':16} {'cluster':11} {'space':7} {'layouts':>9} {'plan CPU':>9}"
    print(f"{names} {'estimates/CPU-s':>15} {'RSS':>8} difference")
    for row in rows:
        head = f"{row['model']:16} {row['cluster']:11} {row['space']:7} {row['layouts']:9,} {row['plan_cpu_s']:7.2f} s"
        cost = f"{row['estimate_layouts_per_cpu_s']:15,.0f} {row['peak_rss_mib']:4.0f} MiB"
        print(f"{head} {cost} {row['largest_relative_difference']:.0e}")


if __name__ == "__main__":
    main()
