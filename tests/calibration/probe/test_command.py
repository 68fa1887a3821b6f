"""The commands `zenithtune probe` and `plan --probe`, with a script in place of Megatron-LM."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.calibration.probe.full_disk import full_disk, write_full_disk
from tests.calibration.probe.rank_script import SHAPE, started, training, write_script
from tests.conftest import ROOT
from tests.start_cost import assert_answers_quickly
from tests.started_processes import is_alive, marked_processes, start_forked
from tests.thoroughness import few_quick
from zenith_calibration.calibrate.probed_runs import FILE_NAME

Run = Callable[..., subprocess.CompletedProcess[str]]
CLUSTER = ("--cluster", "h200x8")
EXPERTS = ("--num-experts", "8", "--expert-model-parallel-size", "2")


@pytest.fixture
def run(zenithtune: Run, tmp_path: Path) -> Run:
    """Run the command line in a folder with the script."""
    write_script(tmp_path)
    return zenithtune


def probe_file(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob(f"zenithtune-out/probe-*/{FILE_NAME}")
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def test_a_layout_is_measured_shown_and_written_down(run: Run, tmp_path: Path) -> None:
    done = run("probe", *CLUSTER, "--layout", "TP2 PP4", "--", *training())
    assert done.returncode == 0, done.stderr
    assert re.search(r"TP2 PP4 Z1 mbs1 SP: stage 0 of 4", done.stdout)
    assert re.search(r"^ *stage +rank +peak GiB", done.stdout, re.MULTILINE)
    (measured,) = (line for line in done.stdout.splitlines() if line.strip().startswith("measured: "))
    assert all(part in measured for part in ("memory", "8 micro-batches", "32", "Fake H200"))
    assert "modelled: " in done.stdout and "PP bubble" in done.stdout and "tokens/s/GPU" in done.stdout
    content = probe_file(tmp_path)
    (layout,) = content["layouts"]
    assert [stage["rank"] for stage in layout["stages"]] == [0, 2, 6] and layout["ok"]
    assert (content["num_gpus"], content["seq_len"], content["gpu"]) == (8, 2048, "h200")
    assert "calibrate --probes" in done.stdout and marked_processes(tmp_path) == []


def test_the_commands_own_layout_is_probed_where_none_is_named(run: Run, tmp_path: Path) -> None:
    options = ("--pipeline-model-parallel-size", "2", "--recompute-activations")
    done = run("probe", "--cluster", "h200x64", "--", *training(*options))
    assert done.returncode == 0, done.stderr
    assert "PP2 DP32 Z1 mbs1 selective" in done.stdout
    assert [(rank, world) for rank, world, _ in started(tmp_path)] == [(0, 64), (32, 64)]


def test_json_is_one_object_and_text_for_people_goes_elsewhere(run: Run) -> None:
    done = run("probe", *CLUSTER, "--layout", "TP2", "--layout", "TP4", "--json", "--", *training())
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert len(shown["layouts"]) == 2 and set(shown["ranked"]) == {each["name"] for each in shown["layouts"]}
    for each in shown["layouts"]:
        assert sum(each["combined"]["time_parts"].values()) == pytest.approx(each["combined"]["step_s"])
    assert "running TP2" in done.stderr and "planned as" in done.stderr


@pytest.mark.parametrize("command", [["probe", "--top", "2"], ["plan", "--probe", "2"]])
def test_the_best_of_the_plan_are_probed_and_ranked_again(run: Run, command: list[str]) -> None:
    done = run(*command, *CLUSTER, "--json", "--", *training())
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    first, second = shown["layouts"]
    assert first["planned"]["step_s"] <= second["planned"]["step_s"] and first["name"] != second["name"]
    steps = {each["name"]: each["combined"]["step_s"] for each in shown["layouts"]}
    assert shown["ranked"] == sorted(steps, key=lambda name: steps[name])


def test_a_layout_that_does_not_train_is_exit_code_1_and_says_why(run: Run, tmp_path: Path) -> None:
    done = run("probe", *CLUSTER, "--layout", "PP2", "--", *training(STANDIN="oom"))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "oom on stage 0: " in done.stdout
    assert probe_file(tmp_path)["layouts"][0]["combined"] is None


def test_what_a_log_says_is_shown_as_it_stands(run: Run) -> None:
    done = run("probe", *CLUSTER, "--layout", "TP2", "--", *training(STANDIN="brackets"))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "[/broken] tag :100: in [red]config" in done.stdout


def test_a_gpu_of_another_kind_than_the_clusters_is_noted(run: Run) -> None:
    arguments = ("probe", *CLUSTER, "--layout", "TP2", "--")
    done = run(*arguments, *training(STANDIN_GPU="NVIDIA A100-SXM4-80GB"))
    assert done.returncode == 0, done.stderr
    assert re.search(r"note: .*h200, .*NVIDIA A100-SXM4-80GB", done.stdout)
    assert "note:" not in run(*arguments, *training()).stdout


def test_one_layout_that_fails_leaves_the_others(run: Run) -> None:
    done = run("probe", *CLUSTER, "--layout", "PP2", "--layout", "TP2", "--json", "--", *training(STANDIN_4="oom"))
    assert done.returncode == 0, done.stderr
    failed, trained = json.loads(done.stdout)["layouts"]
    assert (failed["ok"], trained["ok"]) == (False, True)
    assert json.loads(done.stdout)["ranked"] == [trained["name"], failed["name"]]


def test_an_interrupt_ends_the_rank_and_keeps_the_finished_layouts(tmp_path: Path) -> None:
    write_script(tmp_path)
    layouts = ("--layout", "TP2", "--layout", "PP2", "--layout", "TP4")
    arguments = ["probe", *CLUSTER, *layouts, "--", *training(STANDIN_4="hang")]
    prober = start_forked(arguments, tmp_path, os.environ)
    try:
        deadline = time.monotonic() + 500
        while not any(rank == 4 for rank, _, _ in started(tmp_path)):
            assert time.monotonic() < deadline and prober.poll() is None, "the hanging rank never came"
            time.sleep(0.05)
        prober.send_signal(signal.SIGINT)
        stdout, stderr = prober.communicate(timeout=500)
    finally:
        prober.kill()
    assert prober.returncode == 130 and stderr == ""
    assert "interrupted: 1 of 3 " in stdout
    assert not any(is_alive(pid) for _, _, pid in started(tmp_path)) and marked_processes(tmp_path) == []
    (kept,) = probe_file(tmp_path)["layouts"]
    assert kept["ok"] and kept["name"].startswith("TP2 ")


def test_what_a_killed_probe_left_is_ended_by_the_next_and_its_log_masked(run: Run, tmp_path: Path) -> None:
    secret = "hf_abcdefghijklmnopqrstuvwxyzabcdefgh"
    arguments = [
        "probe",
        *CLUSTER,
        "--layout",
        "TP2",
        "--steps",
        "2",
        "--",
        *training(STANDIN="secret", HF_TOKEN=secret),
    ]
    killed = start_forked(arguments, tmp_path, os.environ | {"STANDIN_STEP_S": "100"})
    deadline = time.monotonic() + 500
    while not any(secret in path.read_text() for path in tmp_path.rglob("log.txt")):
        assert time.monotonic() < deadline and killed.poll() is None, "the rank never said its secret"
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    (left,) = (tmp_path / "zenithtune-out").glob("probe-*")
    (pid,) = (pid for _, _, pid in started(tmp_path))
    assert is_alive(pid)
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    assert left.name in done.stdout
    assert not is_alive(pid) and marked_processes(tmp_path) == []
    files = [path for path in (tmp_path / "zenithtune-out").rglob("*") if path.is_file()]
    assert all(secret.encode() not in path.read_bytes() for path in files)
    assert left.name not in run(*arguments).stdout


def test_steps_are_as_many_as_were_asked_for_however_fast_they_are(run: Run, tmp_path: Path) -> None:
    done = run("probe", *CLUSTER, "--layout", "TP2", "--steps", "2", "--", *training(STANDIN_STEP_S="0.01"))
    assert done.returncode == 0, done.stderr
    assert ", 2 steps of 4 micro-batches" in done.stdout
    assert [stage["num_steps"] for stage in probe_file(tmp_path)["layouts"][0]["stages"]] == [2]


@pytest.mark.parametrize("where", ["command.sh", ".lock", "probe.json.", ".writable"])
def test_a_full_disk_is_one_line_that_names_the_folder(tmp_path: Path, where: str) -> None:
    write_full_disk(tmp_path, where)
    arguments = ["probe", *CLUSTER, "--layout", "TP2", "--output-dir", "out", "--", *training()]
    argv = [sys.executable, "-m", "zenith_tune.cli.main", *arguments]
    env = {**os.environ, **full_disk(tmp_path)}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 1, done.stderr
    assert re.match(r"zenithtune: no space left .*\bout: ", done.stderr)
    assert len(done.stderr.splitlines()) == 1 and marked_processes(tmp_path) == []


def test_calibrating_to_a_probe_in_which_nothing_trained_says_so(run: Run, tmp_path: Path) -> None:
    done = run("probe", *CLUSTER, "--layout", "TP2", "--", *training(STANDIN="oom"))
    assert done.returncode == 1 and "use it" not in done.stdout
    (folder,) = (tmp_path / "zenithtune-out").glob("probe-*")
    done = run("calibrate", "--probes", str(folder), "--output", "mine.json")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert str(folder) in done.stderr


def train(*options: str) -> list[str]:
    return ["--", "torchrun", "--nproc-per-node", "8", "pretrain_gpt.py", *SHAPE.split(), *options]


MISTAKES: list[tuple[list[str], list[str]]] = [
    (["probe"], ["training command", "after --"]),
    (["probe", "--layout", "TP2", "--top", "2", *train()], ["--layout", "--top", "leave one"]),
    (["probe", *CLUSTER, "--", "true"], ["pretrain_*.py"]),
    (["probe", *CLUSTER, "--layout", "TP3", *train()], ["Megatron-LM", "layout", "tp*pp*cp"]),
    (["probe", *CLUSTER, "--layout", "TP16", *train()], ["Megatron-LM", "layout"]),
    (["probe", *CLUSTER, "--layout", "PP8 VP2", *train()], ["Megatron-LM", "layout"]),
    (["probe", *CLUSTER, "--layout", "TP2 QQ2", *train()], ["'QQ2'"]),
    (["probe", *CLUSTER, "--layout", "TP2 DP3", *train()], ["8 GPUs", "is 4", "DP3"]),
    (["probe", *CLUSTER, *train(*EXPERTS, "--moe-token-dispatcher-type", "flex")], ["flex", "alltoall"]),
    (["probe", "--cluster", "h1000x8", *train()], ["h1000", "h100"]),
    (["probe", "--cluster", "h200x8", "--gpus", "64", *train()], ["64 GPUs", "--cluster h200x64"]),
    (["probe", "--", "torchrun", "pretrain_gpt.py", *SHAPE.split()], ["number of GPUs", "--gpus 8"]),
    (["probe", *CLUSTER, "--timeout", "-1", *train()], ["--timeout", "-1"]),
    (["probe", *CLUSTER, "--timeout", "nan", *train()], ["--timeout", "nan"]),
    (["probe", *CLUSTER, "--steps", "0", *train()], ["--steps"]),
    (["probe", *CLUSTER, "--top", "65", *train()], ["--top"]),
    (["probe", *CLUSTER, "--calibration", "none.json", *train()], ["none.json"]),
    (["probe", *CLUSTER, "--gbs", "12", *train()], ["Megatron-LM", "layout", "12"]),
    (["plan", *CLUSTER, "--probe", "2", "--pareto", *train()], ["--probe", "--pareto", "leave it out"]),
    (["plan", *CLUSTER, "--probe", "2", "--seq", "4096", *train()], ["--probe", "--seq"]),
    (["plan", *CLUSTER, "--probe", "2", "--fix", "tp=2", *train()], ["--probe", "--fix"]),
    (["plan", *CLUSTER, "--probe", "2", "--precision", "fp8", *train()], ["--probe", "--precision"]),
    (["plan", *CLUSTER, "--probe", "2"], ["training command", "after --"]),
    (["plan", *CLUSTER, *train()], ["--probe K"]),
    (["probe", *CLUSTER, "--output-dir", "/dev/null/x", *train()], ["/dev/null", "--output-dir"]),
    (["probe", *CLUSTER, "--calibration", "/dev/zero", *train()], ["'/dev/zero'", "regular file"]),
]


@pytest.mark.parametrize(("arguments", "parts"), MISTAKES)
def test_every_mistake_is_one_line_and_exit_code_2(
    run: Run, tmp_path: Path, arguments: list[str], parts: list[str]
) -> None:
    done = run(*arguments)
    assert done.returncode == 2 and done.stdout == "", done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for part in parts:
        assert part in done.stderr
    assert started(tmp_path) == [] and not (tmp_path / "zenithtune-out").exists()


@pytest.mark.parametrize(
    "arguments",
    few_quick([["probe", "--help"], *(MISTAKES[index][0] for index in (-1, 0, 1, 2, 3, 8, 9, 10, 11, 12, 18, -2))], 3),
    ids=lambda arguments: " ".join(arguments)[:40],
)
def test_help_and_usage_errors_answer_quickly(arguments: list[str]) -> None:
    argv = [sys.executable, "-m", "zenith_tune.cli.main", *arguments]
    assert_answers_quickly(lambda: subprocess.run(argv, capture_output=True, cwd=ROOT))


def test_the_documentation_has_the_command() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    assert "## zenithtune probe\n" in text and "Usage: zenithtune probe [OPTIONS] -- COMMAND..." in text
