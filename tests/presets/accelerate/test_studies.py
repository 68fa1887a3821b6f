"""Whole studies through the command line, with a stand-in for the launcher and the script behind it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from tests.mentions import mentions
from tests.presets.accelerate.jobs import write

Tune = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def launcher(tmp_path: Path) -> dict[str, str]:
    """Put the stand-in on PATH under the launcher's name."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "accelerate"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT}/tests/standins/accelerate_train.py" "$@"\n')
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def study(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "out" / "s" / "study.json").read_text())
    return found


def optimize(zenithtune: Tune, folder: Path, env: dict[str, str], kind: str, *more: str) -> Any:
    """Run a study; what follows `--` in `more` goes to the script."""
    at = more.index("--") if "--" in more else len(more)
    fixed = ("--output-dir", str(folder / "out"), "--study-name", "s", *more[:at])
    command = ("accelerate", "launch", "--config_file", str(write(folder, kind)), "train.py", *more[at + 1 :])
    return zenithtune("optimize", *fixed, "--", *command, env=env)


@pytest.mark.slow
def test_the_best_layout_of_megatron_is_left_with_its_file(
    zenithtune: Tune, tmp_path: Path, launcher: dict[str, str]
) -> None:
    study_options = ("--no-baseline", "--args", "search=tp+recompute+mbs,mbs_max=4", "--strategy", "grid")
    options = (*study_options, "--", "--batch_size", "2", "--gpu_gib", "60")
    done = optimize(zenithtune, tmp_path, launcher, "MEGATRON_LM", *options)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    trials = study(tmp_path)["trials"]
    assert {trial["outcome"] for trial in trials} == {"ok", "oom"}
    best = max((trial for trial in trials if trial["outcome"] == "ok"), key=lambda trial: trial["value"])
    left = yaml.safe_load((tmp_path / "out" / "s" / "accelerate_config_optimal.yaml").read_text())
    part = left["megatron_lm_config"]
    assert (part["megatron_lm_tp_degree"], part["megatron_lm_pp_degree"]) == tuple(
        best["parameters"][name] for name in ("tp", "pp")
    )
    assert part["megatron_lm_context_parallel_size"] == 1 and left["main_process_ip"] == "10.0.0.1"
    script = tmp_path / "out" / "s" / "best_command.sh"
    again = subprocess.run(
        ["bash", script], env={**os.environ, **launcher}, capture_output=True, text=True, timeout=500
    )
    assert again.stdout == "trained with a batch of 16\n", again.stderr


def test_every_trial_has_the_batch_of_the_users_own_command(
    zenithtune: Tune, tmp_path: Path, launcher: dict[str, str]
) -> None:
    done = optimize(zenithtune, tmp_path, launcher, "DEEPSPEED", "--", "--batch_size", "2")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    logs = [path.read_text() for path in (tmp_path / "out" / "s" / "trials").glob("*/log.txt")]
    batches = [int(match[1]) for log in logs if (match := re.search(r"a batch of (\d+)", log))]
    assert len(batches) > 3 and set(batches) == {2 * 4 * 16}
    study = json.loads((tmp_path / "out" / "s" / "study.json").read_text())
    assert any("ZeRO stages" in table["title"] for table in study["search"]["tables"])


@pytest.mark.slow
def test_a_degree_that_the_script_insists_on_is_a_failed_trial(
    zenithtune: Tune, tmp_path: Path, launcher: dict[str, str]
) -> None:
    options = ("--no-baseline", "--args", "search=tp", "--strategy", "grid", "--", "--batch_size", "2", "--own_tp", "4")
    optimize(zenithtune, tmp_path, launcher, "MEGATRON_LM", *options)
    causes = {trial["parameters"]["tp"]: trial["cause"] for trial in study(tmp_path)["trials"]}
    assert causes.pop(4) is None
    assert causes and all("tensor_model_parallel_size 4" in cause for cause in causes.values())


def test_accumulation_reaches_a_plain_script_by_its_variable(
    zenithtune: Tune, tmp_path: Path, launcher: dict[str, str]
) -> None:
    done = optimize(
        zenithtune, tmp_path, launcher, "MULTI_GPU", "--no-baseline", "--", "--batch_size", "4", "--gpu_gib", "999"
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert [trial["outcome"] for trial in study(tmp_path)["trials"]] == ["ok"] * 3
    logs = [path.read_text() for path in (tmp_path / "out" / "s" / "trials").glob("*/log.txt")]
    assert all("trained with a batch of 64" in log for log in logs)


def test_a_file_that_cannot_be_read_is_one_line_and_exit_code_2(zenithtune: Tune, tmp_path: Path) -> None:
    done = zenithtune("optimize", "--", "accelerate", "launch", "--config_file", "none.yaml", "train.py")
    assert done.returncode == 2
    assert mentions(done.stderr.strip().splitlines()[-1], "none.yaml", "--config_file")


def speedup(folder: Path, *levers: str) -> float:
    """Return what the trial with all of these levers gives over the best without any."""
    trials = [trial for trial in study(folder)["trials"] if trial["outcome"] == "ok"]
    plain = [trial["value"] for trial in trials if not trial["parameters"].keys() & {*levers}]
    [best] = [trial["value"] for trial in trials if trial["parameters"].keys() >= {*levers}]
    return float(best / max(plain))


def test_levers_of_fsdp_are_tried_on_the_best_point_and_kept(
    zenithtune: Tune, tmp_path: Path, launcher: dict[str, str]
) -> None:
    options = ("--no-baseline", "--no-confirm", "--args", "search=mbs,mbs_max=2", "--", "--batch_size", "2")
    done = optimize(zenithtune, tmp_path, launcher, "FSDP", *options)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    left = yaml.safe_load((tmp_path / "out" / "s" / "accelerate_config_optimal.yaml").read_text())
    assert left["dynamo_config"]["dynamo_backend"] == "INDUCTOR"
    mesh = left["parallelism_config"]
    assert mesh == {"parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 8}
    assert speedup(tmp_path, "hybrid_shard", "compile") == pytest.approx(1 / 0.72, rel=0.01)


def test_a_lever_that_did_not_arrive_is_a_failed_trial(
    zenithtune: Tune, tmp_path: Path, launcher: dict[str, str]
) -> None:
    study_options = ("--no-baseline", "--no-confirm", "--args", "search=mbs,mbs_max=2,levers=hybrid_shard")
    options = (*study_options, "--", "--batch_size", "2", "--ignores_mesh")
    optimize(zenithtune, tmp_path, launcher, "FSDP", *options)
    [trial] = [trial for trial in study(tmp_path)["trials"] if "hybrid_shard" in trial["parameters"]]
    assert trial["outcome"] == "error" and mentions(trial["cause"], "dp_replicate_size", 1, 2)


def test_levers_of_deepspeed_reach_it_by_a_json(zenithtune: Tune, tmp_path: Path, launcher: dict[str, str]) -> None:
    study_options = ("--no-baseline", "--no-confirm", "--args", "search=mbs,mbs_max=2,levers=overlap_comm")
    done = optimize(zenithtune, tmp_path, launcher, "DEEPSPEED", *study_options, "--", "--batch_size", "2")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    folder = tmp_path / "out" / "s"
    assert json.loads((folder / "ds_config_optimal.json").read_text())["zero_optimization"]["overlap_comm"] is True
    assert "--deepspeed_config_file" in (folder / "best_command.sh").read_text()
    assert speedup(tmp_path, "overlap_comm") == pytest.approx(1 / 0.9, rel=0.01)
