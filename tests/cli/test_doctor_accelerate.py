"""The command `zenithtune doctor` on jobs of Accelerate and DeepSpeed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.command_runs import Run, as_json, running
from tests.data_folder import measured_data
from tests.presets.accelerate.logs import pair, steps

MEGATRON = {
    "distributed_type": "MEGATRON_LM",
    "num_processes": 16,
    "num_machines": 2,
    "mixed_precision": "bf16",
    "megatron_lm_config": {
        "megatron_lm_tp_degree": 2,
        "megatron_lm_pp_degree": 2,
        "megatron_lm_num_micro_batches": 8,
        "megatron_lm_sequence_parallelism": True,
        "megatron_lm_use_distributed_optimizer": True,
    },
}
KEY = "megatron_lm_context_parallel_size"

A100 = ("--cluster", "a100x16", "--args", "model=llama2-13b,seq=2048")


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    return running("doctor", capsys)


def launch(folder: Path, settings: dict[str, object], *options: str) -> list[str]:
    """Return an `accelerate launch` with a file of these settings; Accelerate takes JSON too."""
    path = folder / "accelerate.json"
    path.write_text(json.dumps({"compute_environment": "LOCAL_MACHINE", "machine_rank": 0, **settings}))
    return ["accelerate", "launch", "--config_file", str(path), "train.py", *options]


def megatron(folder: Path, **changes: object) -> list[str]:
    sizes = {**MEGATRON["megatron_lm_config"], **changes}  # type: ignore[dict-item]
    return launch(folder, {**MEGATRON, "megatron_lm_config": sizes}, "--per_device_train_batch_size", "2")


def test_a_context_size_that_nobody_asked_for_is_the_first_advice(doctor: Run, tmp_path: Path) -> None:
    shown = as_json(doctor(*A100, "--json", "--", *megatron(tmp_path)))
    assert shown["planned"]["layout"]["cp"] == 2 and shown["planned"]["layout"]["dp"] == 2
    first = shown["advice"][0]
    assert (first["name"], first["number"]) == ("implicit_default", 2) and KEY in first["finding"]
    assert first["change"].startswith("cp 2 -> 1, dp 2 -> 4: ") and f"{KEY}: 1" in first["change"]
    assert first["gain"] == pytest.approx(shown["planned"]["step_s"] / first["planned"]["step_s"] - 1)


def test_a_context_size_that_is_said_is_nobodys_mistake(doctor: Run, tmp_path: Path) -> None:
    for size in (1, 2):
        shown = as_json(doctor(*A100, "--json", "--", *megatron(tmp_path, **{KEY: size})))
        assert shown["planned"]["layout"]["cp"] == size
        assert "implicit_default" not in [advice["name"] for advice in shown["advice"]]


def test_a_context_size_that_the_gpus_cannot_have_is_refused(doctor: Run, tmp_path: Path) -> None:
    done = doctor(*A100, "--", *megatron(tmp_path, megatron_lm_tp_degree=4, megatron_lm_pp_degree=4))
    assert done.code == 2 and f"set {KEY}: 1" in done.err and done.err.count(KEY) == 2 and done.err.count("\n") == 1


def test_a_context_size_that_nobody_asked_for_is_found_in_a_run_without_memory_too(doctor: Run, tmp_path: Path) -> None:
    command = megatron(tmp_path, megatron_lm_pp_degree=1)
    done = doctor("--cluster", "a100x16", "--args", "model=llama2-70b,seq=2048", "--", *command)
    warned, out_of_memory = (line for line in done.out.splitlines() if KEY in line or "100% likely" in line)
    assert warned.endswith(f"{KEY}: 1") and "memory" in out_of_memory


def test_what_the_planner_knows_to_be_twice_as_fast_is_not_called_well(doctor: Run, tmp_path: Path) -> None:
    zero = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8, "zero_optimization": {"stage": 3}}
    (tmp_path / "ds.json").write_text(json.dumps({**zero, "bf16": {"enabled": True}}))
    job = ("--cluster", "l40sx8", "--args", "model=llama3-8b,seq=4096")
    done = doctor(*job, "--", "deepspeed", "--num_gpus", "8", "train.py", "--deepspeed", "ds.json")
    assert done.code == 0 and re.search(r"^1\. 6\d% .*data-parallel", done.out, re.MULTILINE)
    assert "predicted +129.1% speed" in done.out


def test_a_measured_run_of_another_model_gets_a_mismatch_and_nothing_else(doctor: Run, tmp_path: Path) -> None:
    plain = {"distributed_type": "MULTI_GPU", "num_processes": 2, "num_machines": 1, "mixed_precision": "no"}
    command = launch(tmp_path, plain, "--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2")
    (tmp_path / "train.log").write_text(pair() + steps([0.1] * 20, passes=2))
    args = ("--cluster", "h100x2", "--args", "model=llama3-8b,seq=32")
    done = doctor("train.log", *args, "--", *command)
    assert done.code == 0, done.err
    *_, line = done.out.splitlines()
    assert re.search(r"\b9\d% off", line) and "change" not in done.out
    shown = as_json(doctor("train.log", *args, "--json", "--", *command))
    assert (shown["advice"], shown["warnings"], shown["is_healthy"]) == ([], [line], False)


def test_the_log_says_on_which_gpu_it_ran_out(doctor: Run) -> None:
    log = str(measured_data() / "logs" / "megatron_oom.log")
    done = doctor(log, "--cluster", "h100x8")
    assert done.code == 2 and re.search(r"139\.8 GiB, .*h100x1 .*79\.1 GiB: .*--cluster", done.err)
    assert doctor(log, "--cluster", "h200x8").code == 1


def test_an_out_of_memory_that_was_planned_needs_no_more_than_room(doctor: Run, tmp_path: Path) -> None:
    text = (measured_data() / "logs" / "megatron_oom.log").read_text().replace("139.80 GiB", "79.10 GiB")
    (tmp_path / "oom.log").write_text(text)
    done = doctor("oom.log", "--cluster", "h100x1")
    assert done.code == 1
    assert re.search(r"^ +fits +more micro-batches: mbs 8 -> 1 \(7\d\.\d of 79\.1 GiB", done.out, re.MULTILINE)
    assert "no layout fits" not in done.out


def test_a_mismatch_names_the_cluster_where_only_that_was_given(doctor: Run) -> None:
    log = str(measured_data() / "logs" / "megatron_steady60.log")
    done = doctor(log, "--cluster", "a100x1")
    assert re.search(r"56% off: .*--cluster", done.out) and "model=" not in done.out


@pytest.mark.parametrize("model", ["llama2-13b", "llama2-70b"])
def test_no_advice_for_accelerate_is_one_that_its_file_cannot_say(doctor: Run, tmp_path: Path, model: str) -> None:
    command = megatron(tmp_path, megatron_lm_pp_degree=4, megatron_lm_tp_degree=4, **{KEY: 1})
    shown = as_json(doctor("--cluster", "a100x16", "--args", f"model={model},seq=2048", "--json", "--", *command))
    advised = [each["planned"]["layout"] for each in (*shown["advice"], *shown.get("remedies", ())) if each["planned"]]
    assert advised
    assert {layout["vp"] for layout in advised} == {1} and {layout["cp"] for layout in advised} == {1}
    assert all(layout["tp"] <= 8 and layout["recompute"] != "selective" for layout in advised)
