"""Measures how well many trials fill a Slurm cluster, and what the tuner itself costs per trial there.

Starts a private cluster of four nodes with eight fake GPUs each, and runs `zenithtune optimize` with trials of four
GPUs that sleep: the makespan is compared with trials / slots x seconds, every GPU's use is checked, and the best with
that of the same study run in sequence. Before that, trials of no length run one at a time: what passes from the end of
each to the next call of sbatch is the tuner's. Needs root, Debian's slurm-wlm and munge.

    python benchmarks/slurm_makespan.py --output benchmarks/results/slurm.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.engines.slurm_cluster import slurm_cluster  # noqa: E402
from tests.toy_plugin import install  # noqa: E402
from tests.toy_preset import ToyPreset  # noqa: E402

from zenith_tune import PresetTuner  # noqa: E402
from zenith_tune.runners.slurm.runner import SlurmRunner  # noqa: E402
from zenith_tune.tuning.events import StudyListener  # noqa: E402

NUM_NODES, GPUS_PER_NODE, GPUS_PER_TRIAL = 4, 8, 4
TRAINER = """
start=$(date +%s.%N); sleep "$2"; end=$(date +%s.%N)
echo "$SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $start $end" > "$ZENITHTUNE_TRIAL_FOLDER/used"
echo "value: $(( ($1 * 37) % 101 ))"
"""


def optimize(folder: Path, num_trials: int, seconds: float, *options: str) -> tuple[float, dict[str, Any]]:
    """Run the command line's study; returns its seconds and its study.json."""
    environment = {**os.environ, **install(folder / "plugin"), "ZENITHTUNE_HOME": str(folder)}
    (folder / "trainer.sh").write_text(TRAINER)
    study = ["--preset", "toy", "--args", f"n={num_trials}", "--no-baseline", "--study-name", "s", *options]
    command = ["bash", str(folder / "trainer.sh"), "{x}", f"{seconds:g}"]
    argv = [sys.executable, "-m", "zenith_tune.cli.main", "optimize", *study, "--", *command]
    start = time.perf_counter()
    subprocess.run(argv, cwd=folder, env=environment, check=True, capture_output=True)
    elapsed_s = time.perf_counter() - start
    loaded: dict[str, Any] = json.loads((folder / "zenithtune-out" / "s" / "study.json").read_text())
    return elapsed_s, loaded


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return where and when each trial ran, by its own word."""
    found = []
    for path in sorted(folder.glob("zenithtune-out/s/trials/*/used")):
        node, gpus, start, end = path.read_text().split()
        found.append({"trial": path.parent.name, "node": node, "gpus": gpus, "start": float(start), "end": float(end)})
    return found


def num_given_twice(used: list[dict[str, Any]]) -> int:
    """Count how often a GPU belonged to two trials at once."""
    spans: dict[str, list[tuple[float, float]]] = {}
    for row in used:
        for gpu in row["gpus"].split(","):
            spans.setdefault(f"{row['node']}:{gpu}", []).append((row["start"], row["end"]))
    return sum(b[0] < a[1] for each in spans.values() for a, b in itertools.pairwise(sorted(each)))


def makespan(folder: Path, num_trials: int, seconds: float) -> dict[str, Any]:
    """Run the study on the cluster and in sequence on this machine, and return the figures of both."""
    at_once, in_sequence = folder / "at-once", folder / "in-sequence"
    for path in (at_once, in_sequence):
        path.mkdir()
    slurm = ["--slurm", "partition=main", "--gpus-per-trial", str(GPUS_PER_TRIAL), "--parallel", "auto"]
    elapsed_s, study = optimize(at_once, num_trials, seconds, *slurm)
    _, sequence = optimize(in_sequence, num_trials, 0)
    used = rows(at_once)
    ideal_s = num_trials / (NUM_NODES * GPUS_PER_NODE / GPUS_PER_TRIAL) * seconds
    makespan_s = max(row["end"] for row in used) - min(row["start"] for row in used)
    return {
        "trials": num_trials,
        "seconds_per_trial": seconds,
        "ideal_s": ideal_s,
        "makespan_s": makespan_s,
        "makespan_over_ideal": makespan_s / ideal_s,
        "whole_command_s": elapsed_s,
        "num_ok": sum(trial["outcome"] == "ok" for trial in study["trials"]),
        "gpus_given_twice": num_given_twice(used),
        "same_best_as_in_sequence": study["best"]["parameters"] == sequence["best"]["parameters"],
        "rows": used,
    }


def sbatch_clock(folder: Path) -> Path:
    """Put an sbatch on the PATH that notes when it is called; returns its notes."""
    real, notes, wrapper = shutil.which("sbatch"), folder / "sbatch-calls", folder / "bin" / "sbatch"
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text(f'#!/bin/sh\ndate +%s.%N >> {notes}\nexec {real} "$@"\n')
    wrapper.chmod(0o755)
    os.environ["PATH"] = f"{wrapper.parent}:{os.environ['PATH']}"
    return notes


def overhead(folder: Path, num_trials: int) -> dict[str, Any]:
    """Return what the tuner takes from the end of a command to the next call of sbatch, where trials run in sequence.

    In it are the scheduler's own clean-up after the job, the looks that notice it, and the record.
    """
    notes = sbatch_clock(folder)
    preset, command = ToyPreset(range(num_trials)), "sh -c 'echo value: {x}'"
    PresetTuner(
        command,
        preset,
        output_dir=folder,
        study_name="s",
        baseline=False,
        listener=StudyListener(),
        runner=SlurmRunner(),
    ).optimize()
    called = [float(line) for line in notes.read_text().split()][-num_trials:]  # the first one only asks
    ended = [float(path.read_text().split()[-1]) for path in sorted(folder.glob("s/trials/*/exit_code"))]
    gaps = [call - end for end, call in zip(ended, called[1:], strict=False)]
    return {"overhead_trials": num_trials, "overhead_median_s": statistics.median(gaps), "overhead_max_s": max(gaps)}


def shown(figures: Mapping[str, Any]) -> str:
    """Return the figures, one line each, without the rows."""
    return "\n".join(f"{name:28} {value}" for name, value in figures.items() if name != "rows")


def main() -> None:
    """Print the figures, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=6.0, help="how long each trial sleeps")
    parser.add_argument("--overhead-trials", type=int, default=20)
    parser.add_argument("--output", type=Path, help="write the figures and raw rows as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, slurm_cluster(Path(name) / "cluster", NUM_NODES) as cluster:
        os.environ.update(cluster.environment)
        figures: dict[str, Any] = {"date": date.today().isoformat(), "python": platform.python_version()}
        figures |= overhead(Path(name) / "overhead", options.overhead_trials)
        figures |= makespan(Path(name), options.trials, options.seconds)
    print(shown(figures))
    if options.output:
        options.output.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
