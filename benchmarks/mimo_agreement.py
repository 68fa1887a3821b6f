"""Compares the plan of per-module layouts with real runs of every one of them.

For each shape every layout that may run trains for real: `examples/mimo_train.py` on CPU ranks, paced like devices of
one speed (`--device-flops`), so that ranks on two cores show the time of as many devices. The plan is made for the same
speed, and both rankings are laid side by side. A layout's time is its fastest step after the first, because whatever
else the machine does only adds to it, and layouts within CLOSE of the fastest, planned or measured, are trained
MORE_RUNS times more. Ties are real: layouts whose steps differ by less than TIE have no order, and so the best two of
the plan agree where their measured steps are within TIE of the best two measured.

    python benchmarks/mimo_agreement.py --output benchmarks/mimo_agreement-2026-11-15.json

With --unpaced the ranks run at their own speed, and the plan's rates are measured: see mimo_agreement_unpaced.py.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

from mimo_agreement_unpaced import compare
from pinned_cores import pin, whole_cores

from zenith_tune.evaluators.iterations import read_megatron_lines
from zenith_tune.mimo.measured_step import MeasuredStep
from zenith_tune.planner.mimo.candidate import MimoCandidate, mimo_candidates
from zenith_tune.planner.mimo.prediction import MimoPrediction, predict
from zenith_tune.presets.mimo.example import example_options, read_example
from zenith_tune.presets.mimo.job import MimoOverrides
from zenith_tune.shell import ParsedCommand

TRAINER = Path(__file__).parents[1] / "examples" / "mimo_train.py"
TIE = 0.05
"""Steps nearer than that have no order."""
CLOSE = 0.25
MORE_RUNS = 2
NUM_ITERATIONS = 5
COMMON = (
    f"--train-iters {NUM_ITERATIONS} --encoder-heads 4 --patches 4 --llm-heads 4 --llm-hidden 32 --seq-length 32 "
    "--vocab-size 64"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Hold a model and its job."""

    num_ranks: int
    mbs_max: int
    options: str


SHAPES = {
    # All images of four neighbours are in one sample, so that the lanes of data parallelism differ.
    "encoder heavy": Shape(
        num_ranks=4,
        mbs_max=2,
        options="--encoder-layers 8 --encoder-hidden 64 --llm-layers 2 --images 4,0,0,0 --global-batch-size 8 "
        "--device-flops 5e7",
    ),
    "balanced": Shape(
        num_ranks=6,
        mbs_max=1,
        options="--encoder-layers 4 --encoder-hidden 64 --llm-layers 4 --images 4,0 --global-batch-size 6 "
        "--device-flops 4e7",
    ),
    # A batch of 6 does not go round on 4 ranks.
    "language heavy": Shape(
        num_ranks=4,
        mbs_max=2,
        options="--encoder-layers 4 --encoder-hidden 32 --llm-layers 8 --images 2,1 --global-batch-size 6 "
        "--device-flops 1e8",
    ),
    # Nine layouts, for a test.
    "small": Shape(
        num_ranks=4,
        mbs_max=1,
        options="--encoder-layers 2 --encoder-hidden 32 --encoder-heads 2 --llm-layers 2 --llm-heads 2 --images 2,0 "
        "--global-batch-size 6 --device-flops 4e7 --train-iters 4",
    ),
}

UNPACED = {
    "encoder heavy": Shape(
        num_ranks=4,
        mbs_max=2,
        options="--encoder-layers 6 --encoder-hidden 192 --patches 16 --llm-layers 3 --llm-hidden 96 --seq-length 64 "
        "--images 2,0,1,0 --global-batch-size 8",
    ),
    "language heavy": Shape(
        num_ranks=4,
        mbs_max=2,
        options="--encoder-layers 4 --encoder-hidden 96 --patches 16 --llm-layers 6 --llm-hidden 192 "
        "--vocab-size 1024 --seq-length 96 --images 1,2,1,0 --global-batch-size 8",
    ),
    "balanced": Shape(
        num_ranks=6,
        mbs_max=1,
        options="--encoder-layers 6 --encoder-hidden 192 --patches 16 --llm-layers 4 --llm-hidden 128 "
        "--vocab-size 512 --seq-length 64 --images 2,1,0 --global-batch-size 12",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Hold one layout with both of its times."""

    prediction: MimoPrediction
    step_s: float

    @property
    def label(self) -> str:
        """Return the layout in a few words."""
        return self.prediction.at.label


def trainer_module() -> ModuleType:
    """Import the example."""
    spec = importlib.util.spec_from_file_location("mimo_train", TRAINER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measure(trainer: ModuleType, words: Sequence[str], *, pinned: bool = False) -> tuple[list[float], str]:
    """Train for real with these options, and return the steps after the first, and the log."""
    from zenith_tune.mimo.local_ranks import run_ranks

    options = trainer.read_options(words)
    num_ranks = trainer.layout_of(options).world_size
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"

        def work() -> None:
            if pinned:
                pin(int(os.environ["RANK"]), num_ranks)
            with log.open("a") as file, contextlib.redirect_stdout(file):
                trainer.train(options)

        codes = run_ranks(num_ranks, work, timeout=timedelta(seconds=60), grace_s=5.0)
        if any(codes):
            raise SystemExit(f"error: {shlex.join(words)} ended with {codes}")
        text = log.read_text()
        return [line.seconds for line in read_megatron_lines(text)[1:]], text


def run_shape(trainer: ModuleType, shape: Shape) -> list[Row]:
    """Plan and train every layout of a shape, the plan's best first."""
    line = ParsedCommand.of(f"python {TRAINER.name} {COMMON} {shape.options}")
    job = read_example(line, MimoOverrides(n_gpus=shape.num_ranks)).job
    candidates = mimo_candidates(job, mbs_max=shape.mbs_max)
    predictions = sorted((predict(job, at) for at in candidates), key=lambda prediction: prediction.step_s)
    fixed = [*COMMON.split(), *shape.options.split()]

    def timed(prediction: MimoPrediction) -> float:
        step_s = min(measure(trainer, [*fixed, *layout_words(prediction.at)])[0])
        times = f"{prediction.step_s * 1e3:8.1f} ms planned {step_s * 1e3:8.1f} ms measured"
        print(f"{times}  {prediction.at.label}", flush=True)
        return step_s

    steps = [timed(prediction) for prediction in predictions]
    for _ in range(MORE_RUNS):
        bars_s = [(1 + CLOSE) * times[0] for times in (sorted(steps), [each.step_s for each in predictions])]
        steps = [
            min(step_s, timed(each)) if step_s <= bars_s[0] or each.step_s <= bars_s[1] else step_s
            for each, step_s in zip(predictions, steps, strict=True)
        ]
    return [Row(prediction=each, step_s=step_s) for each, step_s in zip(predictions, steps, strict=True)]


def layout_words(at: MimoCandidate) -> list[str]:
    """Return the options of a layout."""
    return [word for name, value in example_options(at).items() for word in (name, str(value))]


def run_unpaced(trainer: ModuleType, shape: Shape) -> dict[str, Any]:
    """Measure rates, plan, and train every layout of a shape on a core for each rank."""
    if len(whole_cores()) < shape.num_ranks:
        raise SystemExit(f"error: {shape.num_ranks} ranks need a core each, but there are {len(whole_cores())}")
    fixed = [*shape.options.split(), "--train-iters", str(NUM_ITERATIONS)]
    job = read_example(
        ParsedCommand.of(shlex.join(["python", TRAINER.name, *fixed])), MimoOverrides(n_gpus=shape.num_ranks)
    ).job

    def train(at: MimoCandidate) -> tuple[list[float], MeasuredStep | None]:
        steps, log = measure(trainer, [*fixed, *layout_words(at)], pinned=True)
        print(f"{statistics.median(steps) * 1e3:8.1f} ms  {at.label}", flush=True)
        return steps, MeasuredStep.read(log)

    return compare(job, shape.mbs_max, train)


def agreement(rows: Sequence[Row], tie: float = TIE) -> dict[str, Any]:
    """Return how far the plan's order is the measured one; `rows` are in the plan's order."""
    measured = sorted(rows, key=lambda row: row.step_s)
    best_two = [row.step_s for row in rows[:2]]
    return {
        "num_layouts": len(rows),
        "same_best_two": {row.label for row in rows[:2]} == {row.label for row in measured[:2]},
        "best_two_within_tie": best_two[0] <= measured[0].step_s * (1 + tie)
        and max(best_two) <= measured[min(1, len(measured) - 1)].step_s * (1 + tie),
        "regret": rows[0].step_s / measured[0].step_s - 1,
        "rank_correlation": rank_correlation([row.prediction.step_s for row in rows], [row.step_s for row in rows]),
        "median_error": statistics.median(abs(row.prediction.step_s / row.step_s - 1) for row in rows),
        "planned_best": [row.label for row in rows[:2]],
        "measured_best": [row.label for row in measured[:2]],
        "best_step_s": measured[0].step_s,
        "best_homogeneous_step_s": min(row.step_s for row in rows if row.prediction.at.is_homogeneous),
    }


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's coefficient.

    >>> rank_correlation([1, 2, 3], [10, 30, 20])
    0.5
    """
    ranks = [[sorted(values).index(value) for value in values] for values in (first, second)]
    return statistics.correlation(*ranks)


def run_paced(trainer: ModuleType, shape: Shape) -> dict[str, Any]:
    """Lay the plan for a given speed beside runs at that speed."""
    rows = run_shape(trainer, shape)
    lines = [
        {"layout": row.label, "planned_s": round(row.prediction.step_s, 5), "measured_s": round(row.step_s, 5)}
        for row in rows
    ]
    return {**agreement(rows), "rows": lines}


def main() -> None:
    """Run the shapes that are asked for, print the agreement and write it down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, metavar="FILE", help="write rows and agreement as JSON")
    parser.add_argument("--shape", action="append", help="default: all three")
    parser.add_argument("--unpaced", action="store_true", help="at their own speed, a core for each rank")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    shapes, run = (UNPACED, run_unpaced) if options.unpaced else (SHAPES, run_paced)
    common = "" if options.unpaced else f"{COMMON} "
    if unknown := set(options.shape or ()) - set(shapes):
        parser.error(f"unknown shapes {sorted(unknown)}: known are {sorted(shapes)}")
    trainer = trainer_module()
    import torch

    import zenith_tune.mimo.optimizer.checkpoint  # noqa: F401 - imported before the ranks are forked, so that they have it

    record: dict[str, Any] = {
        "date": str(date.today()),
        "command": shlex.join(["python", "benchmarks/mimo_agreement.py", *sys.argv[1:]]),
        "machine": f"{os.cpu_count()} CPU cores, {platform.machine()}",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "tie": TIE,
        "shapes": {},
    }
    for name in options.shape or list(shapes)[:3]:
        begin = time.monotonic()
        found = run(trainer, shapes[name])
        record["shapes"][name] = {
            "options": common + shapes[name].options,
            "num_ranks": shapes[name].num_ranks,
            "seconds": round(time.monotonic() - begin, 1),
            **found,
        }
        told = {key: value for key, value in found.items() if key != "rows"}
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in told.items()), flush=True)
        if options.output:  # after each shape, so that a run that is cut short keeps what it has
            options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
