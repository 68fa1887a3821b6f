"""Does what a run ends with hold what the whole run shows?

    python benchmarks/early_stop.py --golden ../Megatron-LM       prints a table and writes a dated file

Recorded: the step times that Megatron-LM keeps of its functional tests, each test case a study of the runs that are
kept of it, cut to 50 iterations. Tests of the rule's own noise are in tests/evaluators/test_early_stop_coverage.py,
whole studies in study_cost.py.

An interval holds where the value of the whole run is in the 90% interval of the one that was ended. Misordered is a
trial whose two intervals put it on the wrong side of the best before it, from which the whole run is more than 1% away.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path

from mimo_regret import commit_of_package
from places import RESULTS

from zenith_tune import Direction, Outcome, Trial
from zenith_tune.evaluators.base import Progress
from zenith_tune.evaluators.early_stop import MIN_SAMPLES, EarlyStop, Stakes, study_drift
from zenith_tune.evaluators.steady import long_run, num_warm_up, summarise
from zenith_tune.study.precision import TO_90

OUTPUT = RESULTS / f"early-stop-{date.today().isoformat()}.json"
MIN_RECORDED, MAX_RECORDED = 20, 50
APART = 0.01
RULE = EarlyStop()


def golden_runs(checkout: Path) -> list[list[list[float]]]:
    """Return the step times of Megatron-LM's functional tests, a list for each test case."""
    cases: dict[str, list[list[float]]] = defaultdict(list)
    for path in sorted(checkout.glob("tests/functional_tests/test_cases/*/*/golden_values_*.json")):
        text = path.read_text().strip()
        times = json.loads(text).get("iteration-time", {}) if text else {}  # some are empty there
        if times.get("step_interval") != 1:
            continue
        values = [times["values"][step] for step in sorted(times["values"], key=int)]
        seconds = [value for value in values if isinstance(value, float)][:MAX_RECORDED]
        if len(seconds) >= MIN_RECORDED:
            cases[path.parent.name].append(seconds)
    return list(cases.values())


def run_trial(seconds: Sequence[float], stakes: Stakes) -> Trial:
    """Look after every iteration until the rule ends the run; `early` says whether it did."""
    for num in range(MIN_SAMPLES, len(seconds) + 1):
        steady = seconds[num_warm_up(seconds[:num]) : num]
        step_s = long_run(steady)
        progress = Progress(values=steady, value=step_s, num_iterations=num, step_s=step_s)
        found = RULE.judge(progress, Direction.MINIMIZE, stakes)
        if found.ends:
            return _trial(steady, found.reason)
    return _trial(seconds[num_warm_up(seconds) :], None)


def _trial(steady: Sequence[float], early: str | None) -> Trial:
    found = summarise(steady, Direction.MINIMIZE)
    return Trial(
        params={},
        outcome=Outcome.OK,
        early=early,
        value=found.value,
        error=found.error,
        drift=found.drift,
        num_samples=found.num_samples,
    )


def summary(studies: Iterable[Sequence[Sequence[float]]]) -> dict[str, float]:
    """Return how recorded studies end."""
    trials, off, num_held, num_misordered = [], [], 0, 0
    for runs in studies:
        seen: list[tuple[float, float, Trial]] = []
        for seconds in runs:
            truth, best = long_run(seconds[num_warm_up(seconds) :]), min(seen, key=lambda each: each[0], default=None)
            drift = study_drift(trial for _, _, trial in seen)
            trial = run_trial(seconds, Stakes(best=best[2] if best else None, drift=drift))
            value = trial.value or math.nan
            if trial.early is not None:
                off.append(abs(math.log(value / truth)))
                num_held += off[-1] <= TO_90 * trial.standard_error
                num_misordered += best is not None and _is_misordered(trial, truth, best[2], best[1])
            trials.append(trial)
            seen.append((value, truth, trial))
    return {
        "runs": len(trials),
        "ended": len(off),
        "iterations_median": statistics.median(trial.num_samples or 0 for trial in trials),
        "held_pct": round(100 * num_held / len(off), 1),
        "off_median_pct": round(100 * statistics.median(off), 2),
        "off_90_pct": round(100 * statistics.quantiles(off, n=10)[-1], 2),
        "misordered_pct": round(100 * num_misordered / len(off), 2),
    }


def _is_misordered(trial: Trial, truth: float, best: Trial, best_truth: float) -> bool:
    found, true = math.log((trial.value or math.nan) / (best.value or math.nan)), math.log(truth / best_truth)
    half_width = TO_90 * math.hypot(trial.standard_error, best.standard_error)
    return abs(found) > half_width and abs(true) > APART and found * true < 0


def main() -> None:
    """Print the figures and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--golden", type=Path, required=True, help="a Megatron-LM checkout")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    found = {"date": date.today().isoformat(), "commit": commit_of_package(), **summary(golden_runs(options.golden))}
    for name, value in found.items():
        print(f"{name:18} {value}")
    options.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
