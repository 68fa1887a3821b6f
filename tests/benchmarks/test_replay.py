"""A replay answers from the record, counts what a study would have, and guided finds the best layouts in few trials."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.conftest import ROOT
from tests.data_folder import measured_data
from tests.warm_process import run_python
from zenith_tune.errors import ConsecutiveDuplicateLimitExceeded, ConsecutivePruneLimitExceeded, TrialExhausted
from zenith_tune.estimates.calibration import Calibration
from zenith_tune.strategies.base import EvalFunction, TuningStrategy
from zenith_tune.strategies.grid import GridStrategy
from zenith_tune.study.parameters import Direction, Parameter, Value
from zenith_tune.study.trial import Outcome
from zenith_tune.tuning.config import Limits

sys.path.insert(0, str(ROOT / "benchmarks"))

from replay_landscape import NUM_STEPS, START_UP_S, Landscape, Recorded, landscapes, read_runs
from replay_report import curve, gpu_seconds_to, summaries, summary, trials_to
from replay_strategies import Replay, ReplayTrials, heuristic_find, replay, replay_all, within_reach

SCRIPT = ROOT / "benchmarks" / "replay.py"
HEAD = (
    "source_id,year,framework,gpu,n_gpus,gpus_per_node,model,num_layers,hidden,ffn_hidden,num_heads,num_kv_heads,vocab,"
    "seq_len,precision,tp,pp,dp,zero_stage_or_fsdp,mbs,gbs,step_time_s,mem_per_gpu_gib,outcome,notes"
)
ROWS = (
    # tp, pp, zero, mbs, step_s, memory, outcome, notes
    (1, 1, 0, 1, 4.0, 30, "ok", ""),
    (1, 1, 0, 1, 6.0, 30, "ok", ""),
    (1, 1, 0, 1, "", "", "oom", ""),
    (2, 1, 0, 1, 4.8, 20, "ok", ""),
    (1, 2, 0, 1, 8.0, 25, "ok", ""),
    (4, 1, 1, 2, 10.0, 15, "ok", ""),
    (1, 1, 0, 8, "", "", "oom", ""),
    (1, 1, 0, 8, "", "", "oom", ""),
    (8, 1, 0, 1, 0.1, 10, "ok", "INCONSISTENT"),
    (1, 8, 0, 256, "", "", "oom", "GradAcc=1"),
)
KEYS = {
    *("trials_to_1pct_mean", "trials_to_1pct_max", "trials_to_5pct_mean"),
    *("gpu_seconds_to_1pct_mean", "first_pick_median_pct"),
}


@pytest.fixture
def tiny(tmp_path: Path) -> Landscape:
    """Return a landscape of five layouts on eight GPUs, written and read as any folder of measured runs is."""
    lines = [
        f"ultrascale_playbook,2025,nanotron,H100,8,8,tiny,16,2048,8192,32,32,131072,4096,bf16,{tp},{pp},"
        f"{8 // tp // pp},ZeRO-{zero},{mbs},256,{step},{memory},{outcome},{notes}"
        for tp, pp, zero, mbs, step, memory, outcome, notes in ROWS
    ]
    (tmp_path / "tiny.csv").write_text("\n".join([HEAD, *lines]) + "\n")
    (found,) = landscapes(read_runs(tmp_path))
    return found


def point(tp: int = 1, pp: int = 1, zero: int = 0, mbs: int = 1) -> dict[str, Value]:
    return {"tp": tp, "pp": pp, "zero": zero, "mbs": mbs}


def test_repeats_are_one_layout_and_what_is_doubted_or_forbidden_is_none(tiny: Landscape) -> None:
    steps = {tuple(item.point.values()): item.step_s for item in tiny.recorded}
    assert steps == {(1, 1, 0, 1): 5.0, (2, 1, 0, 1): 4.8, (1, 2, 0, 1): 8.0, (4, 1, 1, 2): 10.0, (1, 1, 0, 8): None}
    assert tiny.name == "tiny on h100x8" and tiny.best_s == 4.8
    assert [round(tiny.behind(item), 3) for item in tiny.recorded] == [0.042, 0.0, 0.667, 1.083, math.inf]
    assert {name: parameter.grid(0) for name, parameter in tiny.space.items()} == {
        "tp": [1, 2, 4],
        "pp": [1, 2],
        "zero": [0, 1],
        "mbs": [1, 2, 8],
    }
    assert {item.layout.global_batch for item in tiny.recorded} == {256}
    assert all(item.layout.sequence_parallel and item.layout.flash_attention for item in tiny.recorded)


def test_a_trial_is_answered_with_what_was_recorded(tiny: Landscape) -> None:
    trials = ReplayTrials(tiny)
    fast, split, crashed = trials.run(point(tp=2)), trials.run(point(pp=2)), trials.submit(point(mbs=8)).result()
    assert (fast.outcome, fast.value, fast.step_s, fast.num_samples) == (Outcome.OK, 4.8, 4.8, NUM_STEPS)
    assert fast.peak_memory_bytes == 20 * 2**30
    assert split.peak_memory_bytes is None, "the first rank's memory is not that of the fullest"
    assert (crashed.outcome, crashed.value, crashed.duration_s) == (Outcome.OOM, None, START_UP_S)


def test_pruned_and_repeated_points_are_no_trials(tiny: Landscape) -> None:
    trials = ReplayTrials(tiny, budget=2)
    assert trials.run(point(tp=8)).outcome is Outcome.PRUNED
    assert trials(point(pp=8, mbs=256)) is None
    assert trials(point()) == trials(point()) == 5.0
    trials(point(tp=2))
    assert (len(trials.tried), trials.num_pruned, trials.num_repeated) == (2, 2, 1)
    assert trials(point()) == 5.0, "what was tried is answered although the budget is spent"
    with pytest.raises(TrialExhausted):
        trials(point(pp=2))


def test_a_strategy_that_repeats_itself_or_asks_for_nothing_real_is_stopped(tiny: Landscape) -> None:
    trials = ReplayTrials(tiny, limits=Limits(consecutive_duplicates=2, consecutive_prunes=2))
    with pytest.raises(ConsecutivePruneLimitExceeded):
        [trials(point(tp=8)) for _ in range(3)]
    with pytest.raises(ConsecutiveDuplicateLimitExceeded):
        [trials(point()) for _ in range(4)]


def test_gpu_seconds_are_start_up_and_steps_on_every_gpu_or_what_was_recorded(tiny: Landscape) -> None:
    by_point = {tuple(item.point.values()): item for item in tiny.recorded}
    assert by_point[2, 1, 0, 1].gpu_seconds == 8 * (START_UP_S + NUM_STEPS * 4.8)
    assert by_point[1, 1, 0, 8].gpu_seconds == 8 * START_UP_S
    timed: Recorded = replace(by_point[2, 1, 0, 1], wall_s=70.0)
    assert timed.gpu_seconds == 8 * 70.0


def test_steps_of_different_micro_batches_are_compared_over_the_same_samples(tmp_path: Path) -> None:
    steps = {1: 0.1, 2: 0.12, 4: 0.2}
    head = "source_id,framework,gpu,n_gpus,model,num_layers,hidden,ffn_hidden,num_heads,num_kv_heads,vocab,seq_len,"
    rows = [f"h200_x,accelerate,H200,1,m,16,2048,8192,32,8,128256,2048,bf16,{mbs},{s},ok" for mbs, s in steps.items()]
    (tmp_path / "h200.csv").write_text("\n".join([head + "precision,mbs,step_time_s,outcome", *rows]) + "\n")
    (found,) = landscapes(read_runs(tmp_path))
    assert {item.point["mbs"]: item.step_s for item in found.recorded} == {1: 0.4, 2: 0.24, 4: 0.2}
    assert {item.layout.num_micro_batches for item in found.recorded} == {4, 2, 1}


class Backwards(TuningStrategy):
    """Try the grid from its end, and stop after some trials."""

    ends_by_itself = True

    def __init__(self, num: int) -> None:
        self.num = num

    def optimize(self, eval_fn: EvalFunction, search_space: Mapping[str, Parameter], direction: Direction) -> None:
        points = [point(4, zero=1, mbs=2), point(mbs=8), point(), point(tp=2)]
        for params in points[: self.num]:
            eval_fn(params)


def test_any_strategy_is_replayed_and_counted(tiny: Landscape) -> None:
    whole, cut = replay("whole", Backwards(4), tiny), replay("cut", Backwards(2), tiny)
    assert [round(behind, 3) for behind in whole.behind] == [1.083, math.inf, 0.042, 0.0]
    assert (whole.trials_to(0.01), whole.trials_to(0.05), cut.trials_to(0.05)) == (4, 3, None)
    assert trials_to(cut, 0.01) == 5
    assert gpu_seconds_to(whole, 0.01) == pytest.approx(8 * (4 * 60 + 15 * (10 + 5 + 4.8)))
    assert gpu_seconds_to(cut, 0.01) == pytest.approx(8 * (5 * 60 + 15 * (10 + 5 + 4.8 + 8)))
    assert len(replay("grid", GridStrategy(), tiny).behind) == 5


def test_the_summary_is_the_mean_over_landscapes_and_their_seeds() -> None:
    fields: dict[str, Any] = {"strategy": "s", "source": "x", "num_candidates": 10, "all_gpu_seconds": 100.0}
    fields |= {"gpu_seconds": [1.0] * 4, "ends_by_itself": True}
    replays = [
        Replay(landscape="a", seed=0, behind=[0.0, 0.5, 0.5, 0.5], **fields),
        Replay(landscape="a", seed=1, behind=[math.inf, 0.03, 0.005, 0.5], **fields),
        Replay(landscape="b", seed=0, behind=[0.2, 0.1, 0.04, 0.02], **fields),
    ]
    found = summary(replays)
    assert found["landscapes"] == 2 and found["trials_to_1pct_mean"] == (2 + 10) / 2
    assert found["trials_to_1pct_max"] == 10 and found["trials_to_5pct_mean"] == (1.5 + 3) / 2
    assert found["gpu_seconds_to_1pct_mean"] == (2 + 100) / 2
    assert found["first_pick_median_pct"] == 20 and found["never_within_1pct_pct"] == 33.3
    assert found["stopped_after_mean"] == 4 and found["behind_when_stopped_max_pct"] == 2
    assert summaries(replays)["s"]["by_landscape"]["b"]["trials_to_1pct_mean"] == 10


def test_the_curve_keeps_the_best_so_far_and_nothing_ran_is_wholly_behind() -> None:
    fields: dict[str, Any] = {"strategy": "s", "landscape": "a", "source": "x", "num_candidates": 9}
    fields |= {"gpu_seconds": [], "all_gpu_seconds": 1.0, "ends_by_itself": True}
    replays = [Replay(behind=[math.inf, 0.2, 0.4], **fields), Replay(behind=[3.0, 0.0], **fields)]
    assert curve(replays, 4) == [1.0, 0.1, 0.1, 0.1]


def test_the_heuristic_is_mapped_onto_the_record_and_what_it_cannot_reach_is_reported(tiny: Landscape) -> None:
    sizes: dict[str, Value] = {"tp": 4, "pp": 1, "cp": 1, "ep": 1, "etp": 1, "mbs": 2}
    found = heuristic_find(tiny)({**sizes, "recompute_granularity": "full"})
    assert found is not None and found.layout.zero == 1
    assert within_reach(tiny, 0.01)
    assert not within_reach(replace(tiny, recorded=[item for item in tiny.recorded if item.layout.pp == 2]), 0.01)
    (tried,) = replay_all(tiny, Calibration(), names=("megatron-heuristic",), num_seeds=1)
    assert [round(behind, 2) for behind in tried.behind] == [0.0, 0.04]


def run_script(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_python([str(SCRIPT), *map(str, arguments)], ROOT, os.environ, timeout_s=500)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--fit", "{}"], "runs"),
        (["--fit", "{}", "--strategies", "gided"], "'gided'"),
        (["--seeds", "0"], "--seeds"),
        (["--output", "{}/none/replay.md"], "none/replay.md"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(tmp_path: Path, arguments: list[str], problem: str) -> None:
    result = run_script("--json", *(word.format(tmp_path) for word in arguments))
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1 and problem in result.stderr


@pytest.mark.slow
def test_guided_finds_the_best_in_few_trials_calibrated_on_other_landscapes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    options = ("--only", "8B on h100x8", "--strategies", "guided,guided-uncalibrated,grid")
    result = run_script("--fit", measured_data(), "--json", "--output", page, *options)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert list(found) == ["guided", "guided-uncalibrated", "grid"]
    for scores in found.values():
        assert scores.keys() >= KEYS and scores["landscapes"] == 1
    assert found["guided"]["trials_to_1pct_max"] <= 10
    assert found["guided"]["behind_when_stopped_max_pct"] <= 1
    assert any(line.startswith("| guided | ") for line in page.read_text().splitlines())
    ElementTree.parse(page.with_suffix(".svg"))
