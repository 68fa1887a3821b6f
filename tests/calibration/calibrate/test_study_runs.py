from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zenith_calibration.calibrate.study_runs import StudiedJob, read_study
from zenith_tune.calibrate.time_fit import unusable
from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout_batch import RECOMPUTE_BLOCK, RECOMPUTE_SELECTIVE

JOB = StudiedJob(model=load_model("llama3-8b"), cluster=load_cluster("h100x8"), seq_len=4096)
TRIAL: dict[str, Any] = {
    "outcome": "ok",
    "step_s": 1.5,
    "peak_memory_bytes": 2**34,
    "command": "bash train.sh",
    "parameters": {"tp": 2, "pp": 2, "cp": 1, "ep": 1, "etp": 1, "mbs": 2, "recompute_granularity": "selective"},
}


def study(folder: Path, *trials: dict[str, Any], **others: Any) -> Path:
    content = {"preset": "megatron", "args": {"n_gpus": "8", "gbs": "16"}, "trials": list(trials)} | others
    (folder / "study.json").write_text(json.dumps(content))
    return folder


def test_a_trial_becomes_a_run(tmp_path: Path) -> None:
    (run,) = read_study(study(tmp_path, TRIAL), JOB)
    sizes = {name: run.layout[name] for name in ("tp", "pp", "dp", "mbs", "gbs", "zero")}
    assert sizes == {"tp": 2, "pp": 2, "dp": 2, "mbs": 2, "gbs": 16, "zero": 1}
    assert run.layout["recompute"] == RECOMPUTE_SELECTIVE and run.layout["sequence_parallel"]
    assert (run.step_s, run.memory_bytes, run.memory_kind) == (1.5, 2**34, "reserved")
    assert unusable(run) is None


def test_expert_sizes_do_not_divide_the_data_parallelism(tmp_path: Path) -> None:
    trial = TRIAL | {"parameters": TRIAL["parameters"] | {"pp": 1, "ep": 4}}
    (run,) = read_study(study(tmp_path, trial), JOB)
    assert run.layout["dp"] == 4


def test_options_of_megatrons_own_script_are_believed(tmp_path: Path) -> None:
    command = "torchrun pretrain_gpt.py --num-layers-per-virtual-pipeline-stage 4"
    full = {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 3}
    trial = TRIAL | {"command": command, "parameters": TRIAL["parameters"] | full}
    plain, sharded = read_study(
        study(tmp_path, trial, trial | {"command": f"{command} --use-distributed-optimizer --sequence-parallel"}), JOB
    )
    assert (plain.layout["zero"], plain.layout["sequence_parallel"], plain.layout["vp"]) == (0, False, 4)
    assert (sharded.layout["zero"], sharded.layout["sequence_parallel"]) == (1, True)
    assert (plain.layout["recompute"], plain.layout["recompute_layers"]) == (RECOMPUTE_BLOCK, 3)


def test_trials_that_failed_or_hide_their_layout_are_not_used(tmp_path: Path) -> None:
    trials = [
        TRIAL | {"outcome": "oom", "step_s": None},
        TRIAL | {"outcome": "error", "step_s": 3.0},
        TRIAL | {"parameters": {}},
        TRIAL | {"parameters": {"tp": "two"}},
        TRIAL | {"parameters": [1]},
        TRIAL | {"step_s": float("nan")},
        TRIAL | {"step_s": -1.0},
        {},
    ]
    runs = read_study(study(tmp_path, *trials), JOB)
    assert len(runs) == len(trials) and all(unusable(run) for run in runs)
    assert [run.out_of_memory for run in runs] == [True, *[False] * (len(trials) - 1)]


def test_the_batch_is_the_studys_or_the_one_that_is_given(tmp_path: Path) -> None:
    folder = study(tmp_path, TRIAL, args={"n_gpus": "8"})
    with pytest.raises(UsageError, match="--gbs"):
        read_study(folder, JOB)
    given = StudiedJob(model=JOB.model, cluster=JOB.cluster, seq_len=4096, global_batch=32)
    assert read_study(folder, given)[0].layout["gbs"] == 32


def test_another_number_of_gpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"16 GPUs.* h100x8 has 8"):
        read_study(study(tmp_path, TRIAL, args={"n_gpus": "16", "gbs": "16"}), JOB)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "[" * 100_000, '{"trials": 3}', '{"trials": [5]}'])
def test_a_file_that_is_no_study_is_one_line_or_no_run(tmp_path: Path, content: str) -> None:
    (tmp_path / "study.json").write_text(content)
    with pytest.raises(UsageError) as error:
        read_study(tmp_path, JOB)
    assert "\n" not in str(error.value)


def test_a_folder_without_a_study_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="OUTPUT_DIR/STUDY"):
        read_study(tmp_path, JOB)
