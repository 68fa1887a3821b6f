"""Measures how far from the best a study of preset mimo ends: every layout of small jobs runs for real.

Ranks are processes of one CPU rank each, in one world for each job. A round goes over all layouts in a new random
order: each is built, takes one step to warm up and some that are timed. A step counts relative to the median layout of
its round, so that other work on the machine meets all alike, and a layout's time is the median of its rounds. The
search is then played with the measured steps, and its regret is how much slower than the fastest of all layouts the
fastest of its first 1, 2, 3 and all picks is. Noise is the spread of a layout's rounds (median over layouts of the mean
absolute deviation): regrets below it say nothing.

    python benchmarks/mimo_regret.py --measure --output benchmarks/results/mimo-regret-2026-11-17.json
    python benchmarks/mimo_regret.py --play after --output benchmarks/results/mimo-regret-2026-11-17.json

The second line plays the search of the package that is imported; with a checkout of another commit on PYTHONPATH, that
commit's.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

from zenith_mimo.planning.candidate import MimoCandidate
from zenith_mimo.planning.search import MimoSearch
from zenith_mimo.preset.example import example_options
from zenith_mimo.preset.preset import MimoPreset

ROOT = Path(__file__).resolve().parents[1]
TRAINER = ROOT / "examples" / "mimo_train.py"
TOP = 3
TIMED_STEPS = 2
FIRST = (1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A model and the ranks that it is trained on."""

    num_ranks: int
    options: str
    mbs_max: int = 2

    @property
    def command(self) -> str:
        """The command that a study would be given."""
        return f"python examples/mimo_train.py {self.options}"


ENCODER_HEAVY = "--encoder-layers 4 --encoder-hidden 160 --patches 16 --llm-layers 2 --seq-length 64 --images 2,0,1,0"
LANGUAGE_HEAVY = (
    "--encoder-layers 2 --encoder-hidden 64 --patches 16 --llm-layers 4 --llm-hidden 160 --seq-length 64 "
    "--images 1,2,1,0"
)
NARROW = "--encoder-layers 2 --encoder-hidden 48 --llm-layers 3 --images 4,0,0,0"
JOBS = {
    "encoder heavy, 4 ranks": Job(num_ranks=4, options=f"{ENCODER_HEAVY} --global-batch-size 4"),
    "language heavy, 4 ranks": Job(num_ranks=4, options=f"{LANGUAGE_HEAVY} --global-batch-size 4"),
    "narrow, 4 ranks": Job(num_ranks=4, options=f"{NARROW} --global-batch-size 8"),
    "encoder heavy, 2 ranks": Job(num_ranks=2, options=f"{ENCODER_HEAVY} --global-batch-size 4"),
    "language heavy, 2 ranks": Job(num_ranks=2, options=f"{LANGUAGE_HEAVY} --global-batch-size 4"),
    "narrow, 2 ranks": Job(num_ranks=2, options=f"{NARROW} --global-batch-size 8"),
}


def bound_preset(job: Job) -> MimoPreset:
    """Return the preset of a study of the job."""
    preset = MimoPreset(n_gpus=job.num_ranks, mbs_max=job.mbs_max)
    preset.bind(job.command)
    return preset


def layouts_of(job: Job) -> list[MimoCandidate]:
    """Return all layouts of a job in an order that no plan decides."""
    return sorted((each.candidate for each in bound_preset(job).space.plan.ranked), key=lambda at: at.label)


def example() -> ModuleType:
    """Import the example, whose trainers are measured."""
    spec = importlib.util.spec_from_file_location("mimo_train", TRAINER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measure(job: Job, num_rounds: int) -> list[dict[str, Any]]:
    """Return the steps of every layout in every round."""
    from zenith_mimo.local_ranks import run_ranks

    trainer, layouts = example(), layouts_of(job)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"

        def work() -> None:
            rows = []
            for number in range(num_rounds):
                order = random.Random(number).sample(layouts, len(layouts))
                rows += [{"round": number, "layout": at.label, **timed_steps(trainer, job, at)} for at in order]
                if os.environ["RANK"] == "0":
                    path.write_text(json.dumps(rows))
                    print(f"{job.num_ranks} ranks: round {number + 1} of {num_rounds}", flush=True)

        codes = run_ranks(job.num_ranks, work, timeout=timedelta(minutes=5), grace_s=5.0)
        if any(codes):
            raise SystemExit(f"error: ranks of {job.options} ended with {codes}")
        rows: list[dict[str, Any]] = json.loads(path.read_text())
        return rows


def timed_steps(trainer: ModuleType, job: Job, at: MimoCandidate) -> dict[str, list[float]]:
    """Build a layout on this rank and train some steps; return the times of those after the first, by clock and CPU."""
    import torch
    import torch.distributed as dist

    from zenith_mimo.samples import RandomSamples

    words = [word for name, value in example_options(at).items() for word in (name, str(value))]
    options = trainer.read_options([*shlex.split(job.options), *words])
    built = trainer.make_trainer(options)
    config, images = trainer.config_of(options), trainer.images_of(options)
    steps, cpu = [], []
    for seed in range(1 + TIMED_STEPS):
        batch = RandomSamples(config=config, num_samples=options.global_batch_size, seed=seed, num_items=images)
        dist.barrier()
        begin, cpu_begin = time.perf_counter(), time.process_time()
        built.step(batch)
        dist.barrier()
        steps.append(round(time.perf_counter() - begin, 5))
        all_cpu = torch.tensor(time.process_time() - cpu_begin, dtype=torch.float64)
        dist.all_reduce(all_cpu)
        cpu.append(round(float(all_cpu), 5))
    built.close()
    return {"steps_s": steps[1:], "cpu_s": cpu[1:]}


def layout_times(rows: list[dict[str, Any]]) -> tuple[dict[str, float], float]:
    """Return each layout's time, relative to the median layout of each round, and the noise."""
    by_round: dict[int, dict[str, float]] = {}
    for row in rows:
        by_round.setdefault(row["round"], {})[row["layout"]] = statistics.median(row["steps_s"])
    middles = {number: statistics.median(steps.values()) for number, steps in by_round.items()}
    ratios = {label: [steps[label] / middles[number] for number, steps in by_round.items()] for label in by_round[0]}
    times = {label: statistics.median(values) for label, values in ratios.items()}
    noise = statistics.median(
        statistics.mean(abs(value / times[label] - 1) for value in values) for label, values in ratios.items()
    )
    scale = statistics.median(middles.values())
    return {label: time * scale for label, time in times.items()}, noise


def play(job: Job, times: dict[str, float]) -> dict[str, Any]:
    """Return what a study with these times would try, and how far from the best it would be after each number."""
    plan = bound_preset(job).space.plan
    search, picked = MimoSearch(plan, top=TOP), []
    while (following := search.next()) is not None:
        at = following.prediction.candidate
        search.learn(at, times[at.label])
        picked.append(at.label)
    best = min(times.values())
    nums = {**{f"first {k}": k for k in FIRST}, "at its end": len(picked)}
    order = [each.candidate.label for each in plan.ranked]
    alike = [each.candidate.label for each in plan.homogeneous]
    return {
        "picks": picked,
        "regret": {key: round(min(times[label] for label in picked[:k]) / best - 1, 4) for key, k in nums.items()},
        "best on paper is pick": picked.index(order[0]) + 1 if order[0] in picked else None,
        "rank correlation": rank_correlation([order.index(label) for label in times], list(times.values())),
        "regret of the best homogeneous on paper": round(times[alike[0]] / best - 1, 4) if alike else None,
    }


def rank_correlation(first: list[float], second: list[float]) -> float:
    """Return Spearman's."""
    ranks = [[float(sorted(values).index(value)) for value in values] for values in (first, second)]
    return round(statistics.correlation(*ranks), 3)


def versions() -> dict[str, str]:
    """Return what the runs were made with."""
    import torch

    return {"python": platform.python_version(), "torch": str(torch.__version__), "commit": commit_of_package()}


def commit_of_package() -> str:
    """Return the commit of the package that is imported."""
    import zenith_tune

    folder = Path(next(iter(zenith_tune.__path__)))
    done = subprocess.run(["git", "-C", str(folder), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip()


def main() -> None:
    """Measure, or play a search with what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="run every layout of every job")
    parser.add_argument("--play", metavar="NAME", help="play the search, and keep its picks under this name")
    parser.add_argument("--job", action="append", choices=JOBS, help="default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    options = parser.parse_args()
    record: dict[str, Any] = json.loads(options.output.read_text()) if options.output.exists() else {"jobs": {}}
    if options.measure:
        os.environ["OMP_NUM_THREADS"] = "1"
        record |= {
            "date": str(date.today()),
            "command": shlex.join(["python", "benchmarks/mimo_regret.py", *sys.argv[1:]]),
            "machine": f"{len(os.sched_getaffinity(0))} CPU cores, {platform.machine()}",
            "versions": versions(),
        }
    for name in options.job or list(JOBS):
        job = JOBS[name]
        if options.measure:
            begin = time.monotonic()
            rows = measure(job, options.rounds)
            seconds = round(time.monotonic() - begin, 1)
            entry: dict[str, Any] = {"command": job.command, "num_ranks": job.num_ranks, "seconds": seconds}
            record["jobs"][name] = {**entry, "load_average": os.getloadavg()[0], "played": {}, "rows": rows}
        if name not in record["jobs"]:
            continue
        entry = record["jobs"][name]
        times, noise = layout_times(entry["rows"])
        entry["layouts"], entry["noise"] = len(times), round(noise, 4)
        if options.play:
            entry["played"][options.play] = {"commit": commit_of_package(), **play(job, times)}
            show(name, entry, options.play)
        options.output.write_text(json.dumps(record, indent=1) + "\n")


def show(name: str, entry: dict[str, Any], played: str) -> None:
    """Print one job's figures."""
    found = entry["played"][played]
    regrets = ", ".join(f"{key} {value:.1%}" for key, value in found["regret"].items())
    print(
        f"{name}: {entry['layouts']} layouts, noise {entry['noise']:.1%}; regret {regrets} ({len(found['picks'])} runs)"
        f"; best on paper is pick {found['best on paper is pick']}; rank correlation {found['rank correlation']}"
    )


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
