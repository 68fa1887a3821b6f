"""Sixty trials of half a node on four nodes, beside the same jobs handed to the same Slurm by plain sbatch."""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engines.gpu_use import NOTE, GpuUse, check_no_gpu_was_given_twice, gpu_use
from tests.engines.slurm_cluster import SlurmCluster
from tests.start_cost import reference_wall_s
from tests.study_tools import Witness
from tests.toy_preset import ToyPreset
from zenith_tune import Outcome, PresetTuner
from zenith_tune.runners.slurm.runner import SlurmRunner

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NUM_TRIALS = 60
GPUS_PER_TRIAL = 4
TRAINER = (
    """
tenths=$(( 20 + $1 * 8 % 21 ))
set -- $(( $1 * 37 % 61 )) "${2:-$(( tenths / 10 )).$(( tenths % 10 ))}"
"""
    + NOTE
)
"""Runs for 3 s, give or take one, or for as long as it is asked to; all values are different."""
MAX_OVER_IDEAL = 1.3
MAX_OVERHEAD_S = 0.5
ATTEMPTS = 2
"""Other work on the machine may fall into one run only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The CPU seconds of this process and of the programs that it called."""

    own_s: float
    programs_s: float

    @classmethod
    def now(cls) -> Spent:
        own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return cls(own_s=own.ru_utime + own.ru_stime, programs_s=children.ru_utime + children.ru_stime)

    def since(self, before: Spent) -> float:
        return self.own_s - before.own_s + self.programs_s - before.programs_s


def value_of(x: int) -> int:
    """Return what a layout measures, as the trainer does."""
    return x * 37 % 61


def study(
    folder: Path, parallel: int | str = "auto", num_trials: int = NUM_TRIALS, seconds: str = ""
) -> tuple[Witness, object]:
    folder.mkdir(parents=True)
    trainer = folder / "trainer.sh"
    trainer.write_text(TRAINER)
    witness = Witness()
    tuner = PresetTuner(
        f"bash {trainer} {{x}} {seconds}",
        ToyPreset(range(num_trials)),
        output_dir=folder,
        study_name="s",
        listener=witness,
        runner=SlurmRunner(),
        parallel=parallel,
        gpus_per_trial=GPUS_PER_TRIAL,
    )
    return witness, tuner.optimize()


def plain_sbatch(cluster: SlurmCluster, folder: Path) -> GpuUse:
    """Hand the same jobs over at once, and wait for them."""
    trainer = folder / "trainer.sh"
    folder.mkdir(parents=True)
    trainer.write_text(TRAINER)
    for x in range(NUM_TRIALS):
        own = folder / "s" / "trials" / str(x)
        own.mkdir(parents=True)
        wrap = f"ZENITHTUNE_TRIAL_FOLDER={own} bash {trainer} {x}"
        where = [f"--output={own}/log.txt", "--ntasks-per-node=1", "--nodes=1", f"--gpus-per-node={GPUS_PER_TRIAL}"]
        cluster.run("sbatch", "--parsable", *where, f"--wrap={wrap}")
    deadline = time.monotonic() + 500
    while len(used := gpu_use(folder / "s")) < NUM_TRIALS * GPUS_PER_TRIAL:
        assert time.monotonic() < deadline, f"only {len(used)} GPU uses were noted"
        time.sleep(0.2)
    return used


def makespan_s(used: GpuUse) -> float:
    return max(end for _, _, end in used) - min(start for _, start, _ in used)


def test_sixty_trials_fill_the_cluster_as_plain_sbatch_does(cluster: SlurmCluster, tmp_path: Path) -> None:
    took_s: list[tuple[float, float]] = []
    for attempt in range(ATTEMPTS):
        folder, before = tmp_path / str(attempt), Spent.now()
        ideal_s = makespan_s(plain_sbatch(cluster, folder / "plain"))
        between = Spent.now()
        witness, best = study(folder / "tuned")
        overhead_s = Spent.now().since(between) - between.since(before)
        used = gpu_use(folder / "tuned" / "s")
        assert [trial.outcome for trial in witness.trials] == [Outcome.OK] * NUM_TRIALS
        assert len(used) == NUM_TRIALS * GPUS_PER_TRIAL
        check_no_gpu_was_given_twice(used)
        # In sequence the best is the one whose value is the largest: a value depends on nothing but the layout.
        assert best == max((float(value_of(x)), {"x": x}) for x in range(NUM_TRIALS))
        assert overhead_s <= MAX_OVERHEAD_S * NUM_TRIALS
        took_s.append((makespan_s(used), ideal_s))
        if makespan_s(used) <= MAX_OVER_IDEAL * ideal_s:
            return
    raise AssertionError(f"seconds of the study and of plain sbatch: {took_s}")


def test_from_the_end_of_a_trial_to_the_next_sbatch_passes_little_time(
    cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = sbatch_clock(tmp_path, monkeypatch)
    study(tmp_path / "tuned", parallel=1, num_trials=7, seconds="0")
    called = [float(line) for line in calls.read_text().split()][1:]  # the first one only asks
    ended = sorted(float(path.read_text().split()[-1]) for path in tmp_path.glob("tuned/s/trials/*/exit_code"))
    gaps_s = [call - end for end, call in zip(ended, called[1:], strict=False)]
    assert len(gaps_s) == 6
    # Half a second where nothing else runs.
    assert statistics.median(gaps_s) < 6 * reference_wall_s()


def sbatch_clock(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put an sbatch on the PATH that notes when it is called; returns its notes."""
    real, notes, wrapper = shutil.which("sbatch"), folder / "sbatch-calls", folder / "bin" / "sbatch"
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text(f'#!/bin/sh\ndate +%s.%N >> {notes}\nexec {real} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    return notes
