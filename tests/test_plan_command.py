from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.conftest import ROOT
from zenith_tune.cli import main

LLAMA = ("--model", "llama3-8b", "--cluster", "h100x8", "--gbs", "64", "--seq", "8192")


class Done(NamedTuple):
    code: int
    out: str
    err: str


Plan = Callable[..., Done]


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Plan:
    """Run the command in this process."""

    def run(*arguments: str) -> Done:
        with pytest.raises(SystemExit) as ended:
            main(["plan", *arguments])
        shown = capsys.readouterr()
        return Done(int(ended.value.code or 0), shown.out, shown.err)

    return run


def as_json(done: Done) -> dict[str, Any]:
    assert done.code == 0, done.err
    loaded: dict[str, Any] = json.loads(done.out)
    return loaded


def test_the_best_layouts_are_shown_with_all_that_a_choice_needs(plan: Plan) -> None:
    done = plan(*LLAMA, "--top", "3")
    assert done.code == 0 and done.err == ""
    for word in ("llama3-8b (8.0B parameters) on h100x8", "tok/s/GPU", "MFU", "OOM", "bound by", "step time", "memory"):
        assert word in done.out
    for word in ("optimizer", "activations", "layouts considered", "not tried:"):
        assert word in done.out


def test_json_has_the_whole_plan_in_plain_units(plan: Plan) -> None:
    shown = as_json(plan(*LLAMA, "--json", "--top", "2"))
    assert (shown["num_gpus"], shown["global_batch"], shown["seq_len"]) == (8, 64, 8192)
    assert len(shown["best"]) == 2
    best = shown["best"][0]
    assert sum(best["time_parts_s"].values()) == pytest.approx(best["step_s"])
    assert best["tokens_per_s"] == pytest.approx(64 * 8192 / best["step_s"])
    assert best["layout"]["tp"] * best["layout"]["pp"] * best["layout"]["cp"] * best["layout"]["dp"] == 8
    assert shown["num_considered"] == shown["num_fitting"] + shown["num_not_fitting"]


def test_a_name_that_is_shown_can_be_explained(plan: Plan) -> None:
    best = as_json(plan(*LLAMA, "--json"))["best"][0]
    explained = as_json(plan(*LLAMA, "--json", "--explain", best["name"]))
    assert explained["estimate"]["step_s"] == pytest.approx(best["step_s"])
    assert explained["broken_rules"] == []
    assert len(explained["stages"]) == best["layout"]["pp"]


def test_an_explanation_shows_stages_and_changes(plan: Plan) -> None:
    done = plan(*LLAMA, "--explain", "TP2 PP2 mbs1 SP full Z1")
    assert done.code == 0
    assert "stage 0" in done.out and "stage 1" in done.out and "single changes" in done.out


def test_a_layout_that_breaks_a_rule_is_told_so(plan: Plan) -> None:
    done = plan(*LLAMA, "--explain", "TP3")
    assert done.code == 1
    assert "breaks a rule: n_gpus must be divisible by tp*pp*cp" in done.out


def test_a_what_if_shows_both_and_the_gain(plan: Plan) -> None:
    done = plan(*LLAMA, "--what-if", "mem=+60,gpus=16", "--top", "1")
    assert "what if mem=+60,gpus=16" in done.out and "gain: +" in done.out and "per GPU" in done.out
    shown = as_json(plan(*LLAMA, "--what-if", "gpus=16", "--json"))
    assert (shown["before"]["num_gpus"], shown["after"]["num_gpus"]) == (8, 16)
    assert shown["gain"] > 0.5


def test_the_front_is_shown_over_gpus_too(plan: Plan) -> None:
    points = as_json(plan(*LLAMA, "--pareto", "--json"))["pareto"]
    assert len({point["layout"]["num_gpus"] for point in points}) > 1
    assert "no layout is better than these" in plan(*LLAMA, "--pareto").out


def test_fixed_values_and_limits_hold(plan: Plan) -> None:
    shown = as_json(plan(*LLAMA, "--json", "--fix", "tp=2,recompute=selective", "--max-mbs", "1", "--max-pp", "2"))
    for planned in shown["best"]:
        layout = planned["layout"]
        assert (layout["tp"], layout["recompute"], layout["micro_batch"]) == (2, "selective", 1)
        assert layout["pp"] <= 2


def test_the_widest_space_has_more(plan: Plan) -> None:
    narrow, wide = (as_json(plan(*LLAMA, "--json", "--space", space)) for space in ("default", "all"))
    assert wide["num_considered"] > 3 * narrow["num_considered"]
    assert wide["best"][0]["step_s"] <= narrow["best"][0]["step_s"] * (1 + 1e-9)


@pytest.mark.parametrize("emit", ["megatron", "ms-swift", "deepspeed", "accelerate"])
def test_every_format_is_printed_or_written(plan: Plan, tmp_path: Path, emit: str) -> None:
    shown = as_json(plan(*LLAMA, "--emit", emit, "--json"))
    done = plan(*LLAMA, "--emit", emit, "--output", str(tmp_path / "a folder"))
    (path,) = (tmp_path / "a folder").iterdir()
    assert path.read_text() == shown["emit"]["text"]
    assert path.name == shown["emit"]["file_name"] and f"written: {path}" in done.out
    assert (path.suffix == ".sh") == bool(path.stat().st_mode & 0o100)


def test_the_emitted_flags_are_those_of_the_best_layout(plan: Plan) -> None:
    shown = as_json(plan("--model", "llama3-70b", *LLAMA[2:], "--cluster", "h100x64", "--emit", "megatron", "--json"))
    layout = shown["best"][0]["layout"]
    assert f"--tensor-model-parallel-size {layout['tp']} " in shown["emit"]["text"]
    assert f"--micro-batch-size {layout['micro_batch']} " in shown["emit"]["text"]


def test_an_accelerate_file_is_yaml(plan: Plan) -> None:
    shown = as_json(plan(*LLAMA, "--emit", "accelerate", "--framework", "fsdp", "--json"))
    assert yaml.safe_load(shown["emit"]["text"])["distributed_type"] == "FSDP"


def test_nothing_that_fits_is_exit_code_1_and_says_what_it_would_take(plan: Plan) -> None:
    done = plan("--model", "llama3-405b", *LLAMA[2:])
    assert done.code == 1
    assert "fits in memory" in done.out and "nearest to fitting" in done.out


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--model", "lama3-8b", *LLAMA[2:]], ["unknown model 'lama3-8b'", "llama3-8b"]),
        ([*LLAMA, "--cluster", "h1000x8"], ["h1000", "h100"]),
        ([*LLAMA, "--gbs", "0"], ["--gbs"]),
        ([*LLAMA, "--seq", "long"], ["--seq"]),
        ([*LLAMA[:4]], ["Missing option '--gbs'"]),
        ([*LLAMA, "--framework", "megatorn"], ["unknown framework", "did you mean 'megatron'"]),
        ([*LLAMA, "--precision", "int3"], ["--precision", "bf16"]),
        ([*LLAMA, "--explain", "TP8 QQ2"], ["'QQ2'"]),
        ([*LLAMA, "--explain", "TP8", "--pareto"], ["--pareto", "--explain"]),
        ([*LLAMA, "--fix", "tp=x"], ["'tp=x'"]),
        ([*LLAMA, "--fix", "tp=7"], ["no layout is left for 8 GPUs"]),
        ([*LLAMA, "--what-if", "memory=8"], ["--what-if", "mem"]),
        ([*LLAMA, "--output", "folder"], ["--emit"]),
        ([*LLAMA, "--emit", "jax"], ["--emit"]),
        ([*LLAMA, "--risk", "2"], ["--risk"]),
        ([*LLAMA, "--layers", "8"], ["No such option", "zenithtune plan --help"]),
        ([*LLAMA, "--cluster", "h100x7", "--gbs", "3", "--max-pp", "4"], ["batch 7", "6 GPUs"]),
        ([*LLAMA, "--emit", "deepspeed", "--explain", "TP2 SP"], ["tp"]),
    ],
)
def test_every_mistake_is_one_line(plan: Plan, arguments: list[str], parts: list[str]) -> None:
    done = plan(*arguments)
    if parts == ["tp"]:  # a rule that a layout breaks is an answer, not a mistake of usage
        assert done.code == 1 and "tp must be 1 with deepspeed" in done.out
        return
    assert done.code == 2 and done.out == ""
    assert len(done.err.strip().splitlines()) == 1, done.err
    for part in parts:
        assert part in done.err


def test_an_output_folder_that_cannot_be_written_is_one_line(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = plan(*LLAMA, "--emit", "megatron", "--output", str(tmp_path / "file" / "folder"))
    assert done.code == 2 and "cannot be written" in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        [*LLAMA, "--gbs", "0"],
        ["--model", "lama3-8b", *LLAMA[2:]],
        [*LLAMA, "--explain", "TP8 QQ2"],
        [*LLAMA, "--what-if", "memory=8"],
        [*LLAMA, "--cluster", "h100x7", "--gbs", "3", "--max-pp", "4"],
    ],
)
def test_help_and_usage_errors_answer_within_four_tenths_of_a_cpu_second(arguments: list[str]) -> None:
    best = 10.0
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "zenith_tune.cli", "plan", *arguments], capture_output=True, cwd=ROOT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert best < 0.4
