"""Checks several tuners on one study: every trial runs once, also when the database is restarted in the middle.

Starts tuners of one study on a PostgreSQL database at the same time, each a process of its own with the same strategy
and seed, so that all ask for the same points. The training command is a shell script that notes each of its runs in a
file. When a third of the trials ran, the given command restarts the database.

    python benchmarks/postgresql_many.py --db postgresql://me@host/db --restart "pg_ctl restart -m immediate -D DIR"
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

from zenith_tune.record.source import find_study

TRAINER = """#!/bin/sh
echo "$@" >> "${0%/*}/ran"
sleep 0.2
echo "value: $((($2 * 7 + ${#}) % 97))"
"""
PRESET = ["--preset", "megatron", "--args", "n_gpus=8,gbs=16", "--objective", r"value: (\d+)", "--maximize"]


def start(folder: Path, index: int, options: argparse.Namespace, study: str) -> subprocess.Popen[bytes]:
    """Start one tuner."""
    where = ["--db", options.db, "--study-name", study, "--resume", "--output-dir", str(folder / "out")]
    budget = ["--strategy", "random", "--no-confirm", "--n-trials", str(options.trials)]
    command = ["--", str(folder / "train.sh"), "--tensor-model-parallel-size", "1"]
    with (folder / f"events-{index}").open("wb") as events, (folder / f"text-{index}").open("wb") as text:
        return subprocess.Popen(
            [sys.executable, "-m", "zenith_tune.cli.main", "optimize", "--json", *where, *PRESET, *budget, *command],
            stdout=events,
            stderr=text,
        )


def runs(folder: Path) -> list[str]:
    """Return the arguments of every run of the training command."""
    path = folder / "ran"
    return path.read_text().splitlines() if path.exists() else []


def events(folder: Path, index: int, name: str) -> list[dict[str, Any]]:
    """Return what one tuner reported under a name."""
    reported = map(json.loads, (folder / f"events-{index}").read_text().splitlines())
    return [event for event in reported if event["event"] == name]


def restart(folder: Path, tuners: list[subprocess.Popen[bytes]], options: argparse.Namespace) -> float:
    """Restart the database in the middle, and return for how many seconds it was away."""
    while len(runs(folder)) < options.trials // 3:
        if any(tuner.poll() is not None for tuner in tuners):
            raise SystemExit("a tuner ended before the middle of the study")
        time.sleep(0.05)
    begin = time.monotonic()
    subprocess.run(shlex.split(options.restart), check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - begin


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Tune one study by all tuners, and count."""
    trainer = folder / "train.sh"
    trainer.write_text(TRAINER)
    trainer.chmod(0o755)
    study = f"many-{time.time_ns()}"
    begin = time.monotonic()
    tuners = [start(folder, index, options, study) for index in range(options.tuners)]
    try:
        away_s = restart(folder, tuners, options) if options.restart else 0.0
        codes = [tuner.wait() for tuner in tuners]
    finally:
        for tuner in tuners:
            tuner.kill()
    wall_s = time.monotonic() - begin
    ran = runs(folder)
    view = find_study(study, db=options.db).view()
    by_number = {
        event["number"]: index for index in range(options.tuners) for event in events(folder, index, "trial_finished")
    }
    ends = [event for index in range(options.tuners) for event in events(folder, index, "study_ended")]
    texts = [(folder / f"text-{index}").read_text() for index in range(options.tuners)]
    return {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "tuners": options.tuners,
        "trials": options.trials,
        "exit_codes": codes,
        "wall_s": wall_s,
        "database_away_s": away_s,
        "tuners_that_noticed": sum("the database answers again" in text for text in texts),
        "runs": len(ran),
        "runs_twice": len(ran) - len(set(ran)),
        "trials_in_record": len(view.trials),
        "outcomes": Counter(trial.state for trial in view.trials),
        "trials_each_tuner_shows": [sum(end["outcomes"].values()) for end in ends],
        "rows": [
            {
                "number": trial.number,
                "tuner": by_number.get(trial.number),
                "state": trial.state,
                "value": trial.trial.value,
                "started_s": (trial.started_s or 0.0) - (view.started_s or 0.0),
                "ended_s": (trial.ended_s or 0.0) - (view.started_s or 0.0),
            }
            for trial in view.trials
        ],
    }


def main() -> None:
    """Print the figures, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", required=True, help="the database, postgresql://...")
    parser.add_argument("--restart", help="the command that restarts it in the middle")
    parser.add_argument("--tuners", type=int, default=8)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--output", type=Path, help="write the figures and a row per trial as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), options)
    for name, value in figures.items():
        if name != "rows":
            print(f"{name:24} {value}")
    if options.output:
        options.output.write_text(json.dumps(figures, indent=1) + "\n")
    if figures["runs"] != options.trials + 1 or figures["runs_twice"]:
        raise SystemExit("a trial was lost, or run twice")


if __name__ == "__main__":
    main()
