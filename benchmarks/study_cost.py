"""What does a study cost until it has a better command, until its search stops, and until its verdict?

    python benchmarks/study_cost.py --label after
    PYTHONPATH=../before/src python benchmarks/study_cost.py --label before

Whole studies of strategy guided, with every part as it is but for the runner: it "runs" a layout of a recorded
landscape (ZENITHTUNE_DATA) by writing the lines that Megatron-LM would, on a clock of its own. When a run ends, what is
tried next and what is confirmed is decided by the package that is imported, so that two commits can be compared: each
label is a column of the same page. A commit from before `Runner.clock` needs that patched in.

A case is a landscape with an own command drawn from its layouts, how much iterations differ, how much two launches of
one command differ, and a seed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import platform
import random
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mimo_regret import commit_of_package
from places import RESULTS, measured_data
from replay import calibration_without
from replay_landscape import START_UP_S, Landscape, Recorded, landscapes, read_runs

from zenith_tune import PresetTuner, Trial
from zenith_tune.calibrate.calibration_file import save_calibration
from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.evaluators.base import TuningEvaluator
from zenith_tune.layouts.layout import Layout
from zenith_tune.presets.megatron.evaluator import MegatronEvaluator
from zenith_tune.presets.parts import CompletePreset
from zenith_tune.runners.base import End, Job, JobRequest, JobResult, Runner
from zenith_tune.strategies.guided.strategy import GuidedStrategy
from zenith_tune.study.parameters import Parameter, Params, Value
from zenith_tune.tuning.events import StudyEnd, StudyListener
from zenith_tune.units import MIB

OUTPUT = RESULTS / "study-cost-2026-11-19.md"
PLACES = {
    "0.5 to 1.3 s": (
        "llama0.4b on h200x1 (hf-accelerate, sequence 1024)",
        "llama-like 1B on h100x64",
        "llama-like 3B on h100x64",
        "llama-like 8B on h100x512",
    ),
    "3 to 8 s": (
        "llama1b-s4k on h200x1 (megatron-local, sequence 4096)",
        "llama-like 3B on h100x8",
        "llama-like 80B on h100x256",
    ),
    "17 to 53 s": ("llama-like 8B on h100x8", "llama-like 80B on h100x64"),
}
"""Names of landscapes by how long an iteration of their best layout takes."""
MOST_SLOWER = 3.0
"""How many times as long as the best layout's an iteration of the own command takes at most."""
NOISES = (0.0003, 0.01, 0.08)
LAUNCHES = (0.003, 0.03)
"""Relative standard deviation of one launch."""
NUM_SEEDS = 3
NUM_GPUS = (1, 64, 1024)
NUM_ITERATIONS = 200
"""Of a run that is not ended."""
FIRST_SLOWER, SECOND_SLOWER = 3.0, 1.05
"""How many times as long as the others the first iteration takes, and the second."""
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One study to simulate."""

    landscape: Landscape
    own: Recorded
    """The layout of the user's own command."""
    noise: float = 0.01
    launch: float = 0.003
    seed: int = 0

    @property
    def name(self) -> str:
        """The case in a line, which is the seed of its noise too."""
        noise = f"iterations {self.noise:.2%}, launches {self.launch:.1%}"
        return f"{self.landscape.name}, own step {self.own.step_s:.3g} s, {noise}, seed {self.seed}"

    @property
    def groups(self) -> list[str]:
        """The rows of the page that the case counts in."""
        length = next((f"iteration {text}" for text, names in PLACES.items() if self.landscape.name in names), "")
        return ["all", length, f"iterations ±{self.noise:.2%}", f"launches ±{self.launch:.1%}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one study took, in seconds of the whole job, and what it came to."""

    better_s: float | None
    """Until the first run of a layout that is faster than the own command; None where there was none."""
    stop_s: float
    verdict_s: float
    better_launches: int | None
    stop_launches: int
    verdict_launches: int
    base_samples: int
    """Steady iterations of the first run of the own command."""
    speedup: float
    true_speedup: float
    holds: bool | None
    """Whether the verdict's interval has the true ratio in it; None where it gives none."""
    is_wrong: bool
    """Whether a slower layout is said to be faster beyond the noise."""
    behind: float
    """By which fraction the command that it ends with is slower than the best."""


class RecordedPreset(CompletePreset):
    """The layouts of a landscape as a search space."""

    def __init__(self, case: Case) -> None:
        self._case, self._landscape = case, case.landscape
        self._find = case.landscape.finder()

    def get_search_space(self) -> dict[str, Parameter]:
        return self._landscape.space

    def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
        return f"true {shlex.quote(_name(params))}"

    def explain(self, params: Mapping[str, Value]) -> str | None:
        return None if self._find(params) else "not in the record"

    def points(self) -> Iterator[Params]:
        yield from (item.point for item in self._landscape.recorded)

    def subject(self, command: str) -> PlanSubject:
        return self._landscape.subject

    def layout(self, params: Mapping[str, Value]) -> Layout | None:
        found = self._find(params)
        return found.layout if found else None

    def own_point(self, command: str) -> Params:
        return self._case.own.point

    def evaluator(self) -> TuningEvaluator:
        return MegatronEvaluator(gbs=self._case.own.layout.global_batch, seq=self._landscape.subject.job.seq_len)


class SimulatedRunner(Runner):
    """A cluster on which time passes only as the tuner waits."""

    def __init__(self, case: Case) -> None:
        self.now_s = 0.0
        self._case = case
        self._layouts = {shlex.quote(_name(item.point)): item for item in case.landscape.recorded}
        self._num_launches: dict[str, int] = {}

    def clock(self) -> float:
        return self.now_s

    def start(self, request: JobRequest) -> Job:
        return SimulatedJob(self, request)

    def recover(self, folder: Path) -> JobResult | None:
        return None

    def lines(self, command: str) -> Iterator[tuple[float, str]]:
        """Yield what one more run of a command prints, each line with the seconds after its start."""
        case, name = self._case, command.partition(" ")[2]
        item = self._layouts[name]
        number = self._num_launches[name] = self._num_launches.get(name, 0) + 1
        rng = random.Random(f"{case.name} {name} {number}")
        if item.step_s is None:
            yield START_UP_S, f"{OOM}\n"
            return
        step_s = item.step_s * math.exp(rng.gauss(0, case.launch))
        now_s, batch = START_UP_S, item.layout.global_batch
        for iteration in range(1, NUM_ITERATIONS + 1):
            slower = {1: FIRST_SLOWER, 2: SECOND_SLOWER}.get(iteration, 1.0)
            took_s = step_s * slower * math.exp(rng.gauss(0, case.noise))
            now_s += took_s
            head = f" iteration {iteration:8d}/{NUM_ITERATIONS:8d} | elapsed time per iteration (ms): "
            yield now_s, f"{head}{took_s * 1000:.1f} | global batch size: {batch:5d} | lm loss: 1.0E+00 |\n"
            if iteration == 1 and item.peak_memory_bytes is not None:
                memory = f"max reserved: {item.peak_memory_bytes / MIB:.1f}"
                yield now_s, f"[Rank 0] (after 1 iterations) memory (MB) | max allocated: 1.0 | {memory}\n"


class SimulatedJob(Job):
    """A run that has printed, whenever it is looked at, what it would have by then."""

    runner: SimulatedRunner

    def start(self) -> None:
        self.began = self.runner.clock()
        lines = list(self.runner.lines(self.request.command))
        self._exit_code = int(lines[-1][1].startswith(OOM))
        self._lines, self._end_s = iter(lines), lines[-1][0]
        self._next = next(self._lines, None)

    def look(self) -> JobResult | None:
        ran_s, printed = self.ran_s(), []
        while self._next is not None and self._next[0] <= ran_s:
            printed.append(self._next[1])
            self._next = next(self._lines, None)
        if printed:
            with self.log_path.open("a") as log:
                log.writelines(printed)
        is_over = self._next is None
        return JobResult(end=End.EXITED, exit_code=self._exit_code, duration_s=ran_s) if is_over else None

    def kill(self, end: End) -> JobResult:
        return JobResult(end=end, exit_code=None, duration_s=self.ran_s())

    def pause(self, limit_s: float) -> None:
        self.runner.now_s += min(limit_s, max(self._end_s - self.ran_s(), 1e-6))


def _name(params: Mapping[str, Value]) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(params.items()))


class _Listener(StudyListener):
    def __init__(self) -> None:
        self.trials: list[Trial] = []
        self.end: StudyEnd

    def trial_finished(self, trial: Trial, label: str, study: object) -> None:
        self.trials.append(trial)

    def study_ended(self, end: StudyEnd) -> None:
        self.end = end


def play(case: Case, calibration: Path, folder: Path) -> Cost:
    """Run one study."""
    os.environ["ZENITHTUNE_HOME"] = str(folder / "home")  # nothing is known of the machine
    heard, preset, cluster = _Listener(), RecordedPreset(case), case.landscape.subject.cluster
    PresetTuner(
        preset.apply_parameters("", case.own.point),
        preset,
        GuidedStrategy(calibration=str(calibration), learn=False),
        output_dir=folder,
        study_name="study",
        runner=SimulatedRunner(case),
        listener=heard,
        gpus_per_trial=cluster.num_gpus,
    ).optimize()
    return cost_of(case, heard.trials, heard.end)


def cost_of(case: Case, trials: Sequence[Trial], end: StudyEnd) -> Cost:
    """Return what a study took, by its runs in the order in which they ended."""
    find, own_s, verdict = case.landscape.finder(), case.own.step_s or math.nan, end.verdict
    assert verdict is not None

    def true_s(trial: Trial | None) -> float:
        item = case.own if trial is None or trial.is_baseline else find(trial.params)
        return math.inf if item is None or item.step_s is None else item.step_s

    spent = list(itertools.accumulate(trial.duration_s or 0.0 for trial in trials))
    better = next((at for at, trial in enumerate(trials) if trial.ok and true_s(trial) < own_s), None)
    stop = max(at for at, trial in enumerate(trials) if not trial.is_rerun)
    best, fastest = end.study.best, end.study.fastest
    true_speedup = own_s / true_s(best)
    has_interval = verdict.low is not None and verdict.high is not None
    return Cost(
        better_s=None if better is None else spent[better],
        stop_s=spent[stop],
        verdict_s=spent[-1],
        better_launches=None if better is None else better + 1,
        stop_launches=stop + 1,
        verdict_launches=len(trials),
        base_samples=trials[0].num_samples or 0,
        speedup=verdict.speedup or math.nan,
        true_speedup=true_speedup,
        holds=(verdict.low or 0.0) <= true_speedup <= (verdict.high or math.inf) if has_interval else None,
        is_wrong=(verdict.low or 0.0) > 1 >= true_speedup,
        behind=true_s(fastest) / case.landscape.best_s - 1,
    )


def cases_of(landscape: Landscape, num_seeds: int = NUM_SEEDS) -> Iterator[Case]:
    """Yield the cases of one landscape."""
    ran = [item for item in landscape.recorded if landscape.behind(item) < MOST_SLOWER - 1]
    for seed in range(num_seeds):
        own = random.Random(f"{landscape.name} {seed}").choice(ran)
        for noise, launch in itertools.product(NOISES, LAUNCHES):
            yield Case(landscape=landscape, own=own, noise=noise, launch=launch, seed=seed)


def play_all(only: str, num_seeds: int = NUM_SEEDS) -> list[tuple[Case, Cost]]:
    """Run the studies of all landscapes, with a calibration that has not seen them."""
    runs, found = read_runs(measured_data()), []
    for landscape in landscapes(runs):
        if landscape.name not in itertools.chain(*PLACES.values()) or only not in landscape.name:
            continue
        calibration, _ = calibration_without(runs, landscape.subject.job.framework.name, landscape.place)
        for case in cases_of(landscape, num_seeds):
            with tempfile.TemporaryDirectory() as name:
                file = Path(name, "calibration.json")
                save_calibration(calibration, file)
                cost = play(case, file, Path(name))
            found.append((case, cost))
            print(f"{case.name}: {describe(cost)}", flush=True)
    return found


def describe(cost: Cost) -> str:
    """Return one study in a line."""
    better = "none" if cost.better_s is None else f"{cost.better_s:.0f}"
    interval = {None: "no interval", True: "held", False: "MISSED"}[cost.holds] + " WRONG" * cost.is_wrong
    return (
        f"{better}/{cost.stop_s:.0f}/{cost.verdict_s:.0f} s, {cost.stop_launches}/{cost.verdict_launches} launches, "
        f"base {cost.base_samples}, {cost.speedup:.3f}x (true {cost.true_speedup:.3f}x) {interval}, "
        f"{cost.behind:.1%} behind"
    )


TIMES = {"better": "first better command", "stop": "stop of the search", "verdict": "verdict"}
Summary = dict[str, float | None]


def summary(costs: Sequence[Cost]) -> Summary:
    """Return what the page says of some studies."""
    found: Summary = {"studies": len(costs)}
    for name in TIMES:
        for unit in ("s", "launches"):
            values = sorted(value for cost in costs if (value := getattr(cost, f"{name}_{unit}")) is not None)
            found[f"{name}_{unit}_median"] = round(statistics.median(values), 1) if values else None
            found[f"{name}_{unit}_90"] = round(values[math.ceil(0.9 * len(values)) - 1], 1) if values else None
    intervals = [cost.holds for cost in costs if cost.holds is not None]
    behind = sorted(cost.behind for cost in costs)
    off = sorted(abs(math.log(cost.speedup / cost.true_speedup)) for cost in costs if cost.holds is not None)
    return found | {
        "base_samples_median": statistics.median(cost.base_samples for cost in costs),
        "base_samples_max": max(cost.base_samples for cost in costs),
        "intervals": len(intervals),
        "held_pct": round(100 * statistics.fmean(intervals), 1) if intervals else None,
        "off_median_pct": round(100 * statistics.median(off), 2) if off else None,
        "off_90_pct": round(100 * off[math.ceil(0.9 * len(off)) - 1], 2) if off else None,
        "wrong": sum(cost.is_wrong for cost in costs),
        "behind_mean_pct": round(100 * statistics.fmean(behind), 2),
        "behind_90_pct": round(100 * behind[math.ceil(0.9 * len(behind)) - 1], 2),
    }


def summaries(found: Sequence[tuple[Case, Cost]]) -> dict[str, Summary]:
    """Return a summary for each group of cases."""
    rows = {group: place for case, _ in found for place, group in enumerate(case.groups)}
    order = sorted(rows, key=lambda group: rows[group])
    return {group: summary([cost for case, cost in found if group in case.groups]) for group in order}


def markdown(record: Mapping[str, Any]) -> str:
    """Return the page: what each label measured, side by side."""
    labels, lines = record["labels"], []
    groups = list(next(iter(labels.values()))["groups"])

    def table(title: str, columns: Mapping[str, Callable[[Summary], str]]) -> None:
        heads = [f"{column}, {label}" for column in columns for label in labels]
        lines.extend(["", f"## {title}", "", f"| | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)])
        for group in groups:
            cells = [show(labels[label]["groups"][group]) for show in columns.values() for label in labels]
            lines.append(f"| {group} | {' | '.join(cells)} |")

    def pair(name: str, factor: float = 1.0) -> Callable[[Summary], str]:
        return lambda found: " / ".join(_number(found[f"{name}_{which}"], factor) for which in ("median", "90"))

    table("Seconds of the job, median / 90th percentile", {text: pair(f"{name}_s") for name, text in TIMES.items()})
    table("Launches, median / 90th percentile", {text: pair(f"{name}_launches") for name, text in TIMES.items()})
    table(
        "What came of it",
        {
            "steady iterations of the own command, median (most)": lambda found: (
                f"{found['base_samples_median']:g} ({found['base_samples_max']})"
            ),
            "90% intervals that hold the true ratio": lambda found: f"{found['held_pct']}% of {found['intervals']}",
            "stated off the true ratio, median (90th)": lambda found: (
                f"{found['off_median_pct']}% ({found['off_90_pct']}%)"
            ),
            "slower called faster": lambda found: f"{found['wrong']}",
            "end behind the best, mean (90th)": lambda found: (
                f"{found['behind_mean_pct']}% ({found['behind_90_pct']}%)"
            ),
        },
    )
    lines += ["", "## GPU-hours, median / 90th percentile of all studies", ""]
    heads = [f"{text}, {label}" for text in TIMES.values() for label in labels]
    lines += [f"| GPUs | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for num in NUM_GPUS:
        shown = [pair(f"{name}_s", num / 3600)(labels[label]["groups"]["all"]) for name in TIMES for label in labels]
        lines.append(f"| {num:,} | {' | '.join(shown)} |")
    made = [
        f"- {label}: commit {each['commit']}, {each['seconds']} s on {each['machine']}: `{each['command']}`"
        for label, each in labels.items()
    ]
    return "\n".join([HEAD, *made, *lines, ""])


def _number(value: float | None, factor: float) -> str:
    if value is None:
        return ""
    number = value * factor
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


HEAD = f"""# What a study costs until it has a better command, until its search stops, and until its verdict

Whole studies of strategy guided over {sum(map(len, PLACES.values()))} recorded landscapes of 1 to 512 GPUs, with a simulated runner and clock
(`benchmarks/study_cost.py`): start-up {START_UP_S:g} s, a first iteration of {FIRST_SLOWER:g} times the others and a second of {SECOND_SLOWER:g}
times, at most {NUM_ITERATIONS} iterations; own commands drawn from the recorded layouts that take at most {MOST_SLOWER:g} times as long as
the best; a calibration that has not seen the landscape, and no earlier study on the machine. GPU-seconds are the job's
seconds times its GPUs. `before` is its commit with no more than `Runner.clock` patched in.
"""  # noqa: E501


def main() -> None:
    """Run all studies, and write what they took under a label."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--label", required=True, help="the column of the page, such as before or after")
    parser.add_argument("--only", default="", help="landscapes whose name holds this; nothing is written")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="the page; its figures are kept as .json beside it")
    options = parser.parse_args()
    begin = time.monotonic()
    found = play_all(options.only)
    if options.only:
        return
    kept = options.output.with_suffix(".json")
    record: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {"labels": {}}
    record["labels"][options.label] = {
        "commit": commit_of_package(),
        "command": shlex.join(["python", "benchmarks/study_cost.py", *sys.argv[1:]]),
        "machine": f"{len(os.sched_getaffinity(0))} CPU cores, {platform.machine()}",
        "seconds": round(time.monotonic() - begin),
        "groups": summaries(found),
    }
    kept.write_text(json.dumps(record, indent=1) + "\n")
    options.output.write_text(markdown(record))


if __name__ == "__main__":
    main()
