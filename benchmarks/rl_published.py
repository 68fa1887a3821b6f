"""Compare predicted steps of reinforcement learning with published ones that nothing was fitted to.

    python benchmarks/rl_published.py

The rows and their source are in benchmarks/results/nemo-rl-steps.csv: step times in all, no phases.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path

from zenith_rl.planning.generation import GenerationWork
from zenith_rl.planning.lengths import AnswerLengths
from zenith_rl.planning.rl_planner import ALGORITHMS, PlacedStep, RlJob, RlPlanner
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.layouts.layout import Layout
from zenith_tune.planner.planner import Planner

ROWS = Path(__file__).parent / "results" / "nemo-rl-steps.csv"
PROMPT = 105


def published() -> Iterator[tuple[dict[str, str], PlacedStep]]:
    """Yield each published row with what is predicted for it."""
    with ROWS.open(encoding="utf-8") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            yield row, _predicted(row)


def _predicted(row: Mapping[str, str]) -> PlacedStep:
    most, training_gpus = int(row["max_len"]), int(row["training_gpus"])
    layout = Layout(
        num_gpus=training_gpus,
        tp=int(row["tp"]),
        cp=int(row["cp"]),
        ep=int(row["ep"]),
        pp=int(row["pp"]),
        micro_batch=1,
        global_batch=training_gpus,  # the sequences of an update take its place
        zero=1,
        sequence_parallel=int(row["tp"]) > 1,
        recompute=row["recompute"],
        recompute_layers=int(row["recompute"] == "full/uniform"),
    )
    work = GenerationWork(
        prompts=int(row["prompts"]),
        group=int(row["group"]),
        prompt_len=PROMPT,
        lengths=AnswerLengths.of_mean(most - PROMPT, float(row["mean_len"])),
    )
    job = JobSpec(seq_len=most, framework=load_framework("megatron"), precision=row["precision"])
    planner = Planner(row["model"], f"{row['gpu']}x{row['gpus']}", job)
    of_step = {"updates": int(row["updates"]), "behind": int(row["behind"])}
    planned = RlPlanner(planner, RlJob(algorithm=ALGORITHMS["grpo"], work=work, **of_step))
    return planned.place(layout, tp=int(row["engine_tp"]), together=training_gpus == int(row["gpus"]))


def main() -> None:
    """Print a line for each row, and the errors of all."""
    ratios = []
    for row, placed in published():
        ratios.append(float(row["step_s"]) / placed.step_s)
        phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in placed.phases.items())
        about = f"{row['model']} on {row['gpu']}x{row['gpus']}, {row['behind']} behind, {row['precision']}"
        print(f"{about}: {row['step_s']} s, predicted {placed.step_s:.1f} s, {ratios[-1]:.2f}x ({phases})")
    ratios.sort()
    print(f"measured over predicted: median {statistics.median(ratios):.2f}, {ratios[0]:.2f} to {ratios[-1]:.2f}")
    print(f"median error {statistics.median(abs(1 / ratio - 1) for ratio in ratios):.1%}")


if __name__ == "__main__":
    main()
