"""DeepSpeed's own autotuner and ours on the same job and machine: wall time, and the speed of what each chooses.

    pip install tabulate      # which DeepSpeed's tuner needs
    python benchmarks/deepspeed_head_to_head.py --output benchmarks/results/deepspeed-head-to-head

The job is examples/deepspeed_train.py on two CPU ranks, ZeRO stages 0 to 2 and micro-batches up to 4. Their tuner runs
twice, ours five times; then both choices train again in turn, five times each. Every log is kept beside the result.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from zenith_tune.presets.deepspeed.evaluator import DeepSpeedEvaluator

ROOT = Path(__file__).parent.parent
TRAINER = ROOT / "examples" / "deepspeed_train.py"
STAGES, MOST_MBS, BATCH, RANKS = [0, 1, 2], 4, 8, 2
THEIR_RUNS, OUR_RUNS, REPEATS = 2, 5, 5
STEPS, REPEAT_STEPS = 40, 60
COMMON: dict[str, Any] = {
    "train_batch_size": BATCH,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": STAGES},
}
MEASURING = {"steps_per_print": 1, "log_level": "info"}
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "LOCAL_SIZE": str(RANKS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """One run of a tuner: how long it took, what it chose, and how many times it started the training."""

    who: str
    seconds: float
    launches: int
    stage: int
    micro_batch: int
    config: dict[str, Any]


def main() -> None:
    """Run both tuners, measure their choices in turn, and write what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for the result and the logs")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    theirs, ours = [], []
    for number in range(1, max(THEIR_RUNS, OUR_RUNS) + 1):  # in turn, so that a busy hour strikes both
        if number <= THEIR_RUNS:
            theirs.append(said(run_theirs(options.output, number)))
        if number <= OUR_RUNS:
            ours.append(said(run_ours(options.output, number)))
    best = theirs[0]
    speeds: dict[str, list[float]] = {"theirs": [], "ours": []}
    for number in range(1, REPEATS + 1):
        for who, tuned in (("theirs", best), ("ours", ours[0])):
            speeds[who].append(measured(tuned.config, options.output / f"again-{who}-{number}.log"))
            print(who, f"{speeds[who][-1]:.1f} samples/s", flush=True)
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "argv": sys.argv[1:],
        "versions": {name: version(name) for name in ("deepspeed", "torch", "zenith-tune")} | {"cpus": os.cpu_count()},
        "summary": summary(theirs, ours, speeds),
        "tuned": [asdict(tuned) for tuned in (*theirs, *ours)],
        "samples_per_s": speeds,
    }
    (options.output / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result["summary"], indent=1))


def summary(theirs: list[Tuned], ours: list[Tuned], speeds: dict[str, list[float]]) -> dict[str, Any]:
    """Return the figures that matter."""
    wall = {who: statistics.median(tuned.seconds for tuned in runs) for who, runs in (("t", theirs), ("o", ours))}
    return {
        "their_seconds": [tuned.seconds for tuned in theirs],
        "our_seconds": [tuned.seconds for tuned in ours],
        "our_share_of_their_time": round(wall["o"] / wall["t"], 3),
        "their_launches": [tuned.launches for tuned in theirs],
        "our_launches": [tuned.launches for tuned in ours],
        "their_choices": [f"z{tuned.stage} mbs{tuned.micro_batch}" for tuned in theirs],
        "our_choices": [f"z{tuned.stage} mbs{tuned.micro_batch}" for tuned in ours],
        "our_speed_over_theirs": round(statistics.median(speeds["ours"]) / statistics.median(speeds["theirs"]), 3),
    }


def run_theirs(output: Path, number: int) -> Tuned:
    """Run `deepspeed --autotuning tune`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tuning = {
            "enabled": True,
            "fast": True,
            "max_train_batch_size": BATCH,
            "max_train_micro_batch_size_per_gpu": MOST_MBS,
            "results_dir": str(folder / "results"),
            "exps_dir": str(folder / "exps"),
        }
        config = {name: value for name, value in COMMON.items() if name != "train_batch_size"}
        (folder / "ds.json").write_text(json.dumps({**config, "autotuning": tuning}), encoding="utf-8")
        started = time.monotonic()
        call(["--autotuning", "tune"], folder, STEPS, output / f"theirs-{number}.log")
        seconds = time.monotonic() - started
        logs = list((folder / "results").glob("*/stdout.log"))
        best = json.loads((folder / "results" / "ds_config_optimal.json").read_text(encoding="utf-8"))
        shutil.copy(folder / "results" / "summary.txt", output / f"theirs-{number}-summary.txt")
    return chosen("theirs", seconds, len(logs), best)


def run_ours(output: Path, number: int) -> Tuned:
    """Run `zenithtune optimize` with the strategy zero-progressive."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "ds.json").write_text(json.dumps(COMMON), encoding="utf-8")
        tuner = [sys.executable, "-m", "zenith_tune.cli.main", "optimize", "--preset", "deepspeed", "--no-baseline"]
        tuner += ["--args", f"n_gpus={RANKS},mbs_max={MOST_MBS}", "--strategy", "zero-progressive"]
        tuner += ["--study-name", "study", "--output-dir", str(folder / "out"), "--"]
        started = time.monotonic()
        run([*tuner, *launcher(), *script(STEPS)], folder, output / f"ours-{number}.log")
        seconds = time.monotonic() - started
        study = json.loads((folder / "out" / "study" / "study.json").read_text(encoding="utf-8"))
        best = json.loads((folder / "out" / "study" / "ds_config_optimal.json").read_text(encoding="utf-8"))
    return chosen("ours", seconds, len(study["trials"]), best)


def measured(config: dict[str, Any], log: Path) -> float:
    """Train once more with a configuration, and return its steady samples per second."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "ds.json").write_text(json.dumps({**config, **MEASURING}), encoding="utf-8")
        call([], folder, REPEAT_STEPS, log)
    text = log.read_text(encoding="utf-8", errors="replace")
    return DeepSpeedEvaluator().evaluate(text, {"trial_id": 0, "command": "", "parameters": {}, "duration": 0.0})


def chosen(who: str, seconds: float, launches: int, config: dict[str, Any]) -> Tuned:
    """Return a tuner's run with what it chose."""
    stage = int(config.get("zero_optimization", {}).get("stage", 0))
    micro_batch = int(config["train_micro_batch_size_per_gpu"])
    return Tuned(
        who=who,
        seconds=round(seconds, 1),
        launches=launches,
        stage=stage,
        micro_batch=micro_batch,
        config=config,
    )


def launcher() -> list[str]:
    """Return DeepSpeed's launcher, on a port that is free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [str(Path(sys.executable).parent / "deepspeed"), "--num_gpus", str(RANKS), "--master_port", str(port)]


def script(steps: int) -> list[str]:
    """Return the training script and its options."""
    return [str(TRAINER), "--steps", str(steps), "--deepspeed_config", "ds.json"]


def call(words: list[str], folder: Path, steps: int, log: Path) -> None:
    """Run the training under DeepSpeed's launcher."""
    program, *rest = launcher()
    run([program, *words, *rest, *script(steps)], folder, log)


def run(command: list[str], folder: Path, log: Path) -> None:
    """Run a command with its output in a log."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, **ENVIRONMENT, "PATH": path, "TORCH_EXTENSIONS_DIR": str(folder / "extensions")}
    with log.open("wb") as file:
        subprocess.run(command, cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT, check=True)


def said(tuned: Tuned) -> Tuned:
    """Print a run and return it."""
    print(
        f"{tuned.who}: {tuned.seconds} s, {tuned.launches} launches, z{tuned.stage} mbs{tuned.micro_batch}", flush=True
    )
    return tuned


if __name__ == "__main__":
    main()
