"""After how many iterations are trials ended, and how often wrongly?

    python benchmarks/early_stop.py                                   prints tables and writes a dated file beside it
    python benchmarks/early_stop.py --golden ../Megatron-LM           reads the step times of its functional tests too

Simulated: studies of one noise, whose first trial knows nothing and whose others know what those before them showed;
the trials are as fast as the best, or slower by some percent; and studies of other runs than white noise. Recorded:
Megatron-LM logs of ZENITHTUNE_DATA, and the golden values of a Megatron-LM checkout, where each
test case is a study of the runs that are kept of it, cut to their first 20 and 50 iterations. Its cases are split in
two by name: the constants of the rule were chosen by half A, and half B judges them. Iterations are the steady ones.

Wrong is a trial that is ended with a value more than 1% off the true one (of a recorded run: the one of the whole run),
or as behind a best that it equals or beats. Late stalls are the share of the ended that are wrong only for stalls which
begin to recur after the end. Misordered is a trial that is ended on the wrong side of the best before
it: the whole runs of both, more than 1% apart, are in the other order. The old rule is the one before a study's noise
was used: at least ten samples.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from places import RESULTS, measured_data

from zenith_tune import Direction, Outcome, Trial
from zenith_tune.evaluators.base import Progress
from zenith_tune.evaluators.early_stop import EarlyStop, locate, rank_trend, study_drift, study_noise
from zenith_tune.evaluators.steady import long_run, num_warm_up, relative_drift, relative_spread
from zenith_tune.presets.megatron.log import read_steps

OUTPUT = RESULTS / f"early-stop-{date.today().isoformat()}.json"
NOISES = (0.001, 0.003, 0.01, 0.02, 0.05)
SLOWER = (0.0, 0.03, 0.1, 0.3, 1.0)
NUM_STUDIES = 40
NUM_LATER = 5
"""Trials of a simulated study after its first."""
LENGTH = 60
"""Iterations of a run that is not ended."""
MIN_RECORDED = 20
RULE = EarlyStop()
Judge = Callable[[Progress, float | None, Sequence[Trial]], str | None]


def new_rule(progress: Progress, best: float | None, earlier: Sequence[Trial]) -> str | None:
    """Judge as trials are judged."""
    return RULE.judge(progress, best, Direction.MINIMIZE, study_noise(earlier), study_drift(earlier))


def old_rule(progress: Progress, best: float | None, earlier: Sequence[Trial]) -> str | None:
    """Judge by the samples alone, of which there must be ten."""
    values = progress.values
    if len(values) < 10:
        return None
    if (reason := RULE.judge(progress, None, Direction.MINIMIZE, study_noise(earlier))) is not None:
        return reason
    found = locate(values)
    reach = found.half_width(16 / len(values) ** 2 * (1 - RULE.sure))
    is_behind = best is not None and found.centre - reach > best * (1 + RULE.precision) and rank_trend(values) > -1.28
    return "behind" if is_behind else None


RULES: dict[str, Judge] = {"new": new_rule, "old": old_rule}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The outcome of one trial."""

    why: str | None
    """The first word of the reason; None of one that ran to its end."""
    values: Sequence[float]

    @property
    def value(self) -> float:
        """What the trial is recorded with."""
        return long_run(self.values)

    def as_trial(self) -> Trial:
        """Return what the study keeps of it."""
        return Trial(
            params={},
            outcome=Outcome.OK,
            value=self.value,
            spread=relative_spread(self.values),
            drift=relative_drift(self.values),
            num_samples=len(self.values),
        )

    def is_wrong(self, truth: float, best: float | None) -> bool:
        """Tell whether it should not have been ended, or not so soon."""
        if self.why == "behind":
            return best is None or truth <= best
        return self.why == "known" and abs(self.value / truth - 1) > RULE.precision


def run_trial(judge: Judge, seconds: Sequence[float], best: float | None, earlier: Sequence[Trial]) -> Ended:
    """Look after every iteration until the rule ends the run."""
    for num in range(2, len(seconds) + 1):
        steady = seconds[num_warm_up(seconds[:num]) : num]
        reason = judge(Progress(values=steady, num_iterations=num), best, earlier)
        if reason is not None:
            return Ended(why=reason.split()[0], values=steady)
    return Ended(why=None, values=seconds[num_warm_up(seconds) :])


def simulated_run(rng: random.Random, level: float, noise: float) -> list[float]:
    """Return the step times of a run with two iterations of warm-up."""
    return [5 * level, 2 * level, *(level * math.exp(noise * rng.gauss(0, 1)) for _ in range(LENGTH))]


def simulated_rows(num_studies: int = NUM_STUDIES) -> list[dict[str, float | str]]:
    """Return a row for each noise, distance from the best and rule."""
    rows = []
    for name, judge in RULES.items():
        for noise in NOISES:
            firsts = []
            laters: dict[float, list[tuple[Ended, bool]]] = defaultdict(list)
            for seed in range(num_studies):
                rng = random.Random(seed)
                first = run_trial(judge, simulated_run(rng, 1.0, noise), None, [])
                firsts.append((first, first.is_wrong(1.0, None)))
                for slower in SLOWER:
                    seen, level = [first.as_trial()], 1 + slower
                    for _ in range(NUM_LATER):
                        ended = run_trial(judge, simulated_run(rng, level, noise), 1.0, seen)
                        seen.append(ended.as_trial())
                        laters[slower].append((ended, ended.is_wrong(level, 1.0)))
            rows.append({"rule": name, "noise_pct": noise * 100, "trial": "first", **_summary(firsts)})
            rows += [
                {"rule": name, "noise_pct": noise * 100, "trial": f"{slower:.0%} slower", **_summary(trials)}
                for slower, trials in laters.items()
            ]
    return rows


def other_runs() -> dict[str, Callable[[random.Random], tuple[list[float], float]]]:
    """Return how to draw runs that are more than white noise, each with its true value, by name."""

    def run(level: Callable[[int], float], noise: float, correlation: float = 0.0) -> Any:
        def draw(rng: random.Random) -> tuple[list[float], float]:
            state, values = rng.gauss(0, 1), [5.0]
            for index in range(LENGTH):
                state = correlation * state + math.sqrt(1 - correlation**2) * rng.gauss(0, 1)
                values.append(level(index) * (1 + noise * state))
            return values, statistics.fmean(level(index) for index in range(LENGTH, LENGTH + 240))

        return draw

    return {
        "correlated 0.6, 1%": run(lambda _: 1.0, 0.01, 0.6),
        "correlated 0.6, 2%": run(lambda _: 1.0, 0.02, 0.6),
        "correlated 0.9, 1%": run(lambda _: 1.0, 0.01, 0.9),
        "warm-up of 10": run(lambda index: 1 + 0.05 * math.exp(-index / 10), 0.003),
        "warm-up of 30": run(lambda index: 1 + 0.05 * math.exp(-index / 30), 0.003),
        "every 12th 10x": run(lambda index: 10.0 if index % 12 == 7 else 1.0, 0.003),
        "every 8th 2x": run(lambda index: 2.0 if index % 8 == 5 else 1.0, 0.003),
    }


def other_rows(num_studies: int = NUM_STUDIES) -> list[dict[str, float | str]]:
    """Return a row for each kind of run that is more than white noise, and rule."""
    rows = []
    for name, judge in RULES.items():
        for kind, draw in other_runs().items():
            groups: dict[str, list[tuple[Ended, bool]]] = defaultdict(list)
            for seed in range(num_studies):
                rng, seen = random.Random(seed), list[Trial]()
                for index in range(1 + NUM_LATER):
                    seconds, truth = draw(rng)
                    ended = run_trial(judge, seconds, None, seen)
                    seen.append(ended.as_trial())
                    groups["later" if index else "first"].append((ended, ended.is_wrong(truth, None)))
            rows += [{"rule": name, "recorded": kind, "trial": key, **_summary(each)} for key, each in groups.items()]
    return rows


def recorded_rows(name: str, studies: Iterable[Sequence[Sequence[float]]]) -> list[dict[str, float | str]]:
    """Return a row for each rule and for first, later and all trials of the recorded studies."""
    rows, all_runs = [], [list(runs) for runs in studies]
    for rule, judge in RULES.items():
        groups: dict[str, list[tuple[Ended, bool]]] = defaultdict(list)
        num_misordered = num_compared = num_late = 0
        for runs in all_runs:
            seen: list[Trial] = []
            truths = [long_run(seconds[num_warm_up(seconds) :]) for seconds in runs]
            for index, (seconds, truth) in enumerate(zip(runs, truths, strict=True)):
                ended = run_trial(judge, seconds, None, seen)
                trial = (ended, ended.is_wrong(truth, None))
                num_late += trial[1] and not ended.is_wrong(statistics.median(seconds[num_warm_up(seconds) :]), None)
                groups["later" if index else "first"].append(trial)
                if seen:
                    best = min(range(index), key=lambda each: seen[each].value or math.inf)
                    against = run_trial(judge, seconds, seen[best].value, seen)
                    num_compared += against.why is not None
                    num_misordered += against.why is not None and _is_misordered(
                        against.value / (seen[best].value or 1.0), truth / truths[best]
                    )
                seen.append(ended.as_trial())
        groups["all"] = [trial for group in list(groups.values()) for trial in group]
        rows += [{"rule": rule, "recorded": name, "trial": key, **_summary(each)} for key, each in groups.items()]
        num_ended = sum(ended.why is not None for ended, _ in groups["all"])
        rows[-1]["late_stalls_pct"] = round(100 * num_late / max(num_ended, 1), 2)
        rows[-1]["misordered_pct"] = round(100 * num_misordered / max(num_compared, 1), 2)
    return rows


def _is_misordered(ratio: float, true_ratio: float) -> bool:
    """Tell whether two whole runs, by more than the precision, are in another order than what was measured of them."""
    return abs(true_ratio - 1) > RULE.precision and (ratio - 1) * (true_ratio - 1) < 0


def _summary(trials: Sequence[tuple[Ended, bool]]) -> dict[str, float | str]:
    nums = [len(ended.values) for ended, _ in trials]
    num_ended = sum(ended.why is not None for ended, _ in trials)
    num_wrong = sum(is_wrong for _, is_wrong in trials)
    return {
        "trials": len(trials),
        "ended": num_ended,
        "behind": sum(ended.why == "behind" for ended, _ in trials),
        "iterations_median": statistics.median(nums),
        "iterations_mean": round(statistics.fmean(nums), 1),
        "wrong_pct": round(100 * num_wrong / len(trials), 2),
        "wrong_of_ended_pct": round(100 * num_wrong / max(num_ended, 1), 2),
    }


def recorded_logs(folder: Path) -> list[list[list[float]]]:
    """Return the step times of each Megatron-LM log that is long enough, each a study of its own."""
    runs = [
        [step.seconds or 0.0 for step in read_steps(path.read_text()).steps] for path in sorted(folder.glob("*.log"))
    ]
    return [[run] for run in runs if len(run) >= MIN_RECORDED]


def golden_runs(checkout: Path) -> dict[str, list[list[float]]]:
    """Return the step times of Megatron-LM's functional tests, by test case."""
    cases: dict[str, list[list[float]]] = defaultdict(list)
    for path in sorted(checkout.glob("tests/functional_tests/test_cases/*/*/golden_values_*.json")):
        text = path.read_text().strip()
        times = json.loads(text).get("iteration-time", {}) if text else {}  # some are empty there
        if times.get("step_interval") != 1:
            continue
        values = [times["values"][step] for step in sorted(times["values"], key=int)]
        seconds = [value for value in values if isinstance(value, float)]
        if len(seconds) >= MIN_RECORDED:
            cases[path.parent.name].append(seconds)
    return cases


def main() -> None:
    """Print the tables and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--golden", type=Path, help="a Megatron-LM checkout")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    rows = simulated_rows() + other_rows() + recorded_rows("logs", recorded_logs(measured_data() / "logs"))
    if options.golden is not None:
        cases = golden_runs(options.golden)
        names = sorted(cases)
        halves = {"A": names[: len(names) // 2], "B": names[len(names) // 2 :]}
        for num in (20, 50):
            for half, chosen in halves.items():
                studies = ([run[:num] for run in cases[name]] for name in chosen)
                rows += recorded_rows(f"golden {half}, {num} iterations", studies)
    columns = (
        *("trials", "ended", "behind", "iterations_median", "iterations_mean"),
        *("wrong_pct", "wrong_of_ended_pct", "late_stalls_pct", "misordered_pct"),
    )
    print(f"{'':44}" + "".join(f"{name:>19}" for name in columns))
    for row in rows:
        what = f"noise {row['noise_pct']:g}%" if "noise_pct" in row else str(row["recorded"])
        head = f"{row['rule']:5}{what:26}{row['trial']:13}"
        print(head + "".join(f"{row.get(name, ''):>19}" for name in columns))
    options.output.write_text(json.dumps({"date": date.today().isoformat(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
