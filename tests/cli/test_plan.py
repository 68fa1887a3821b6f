from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.plan_runs import LLAMA, Plan, as_json, planning
from tests.start_cost import assert_answers_quickly
from zenith_tune.calibrate.calibration_file import default_calibration, save_calibration


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Plan:
    return planning(capsys)


def test_the_best_layouts_are_shown_with_all_that_a_choice_needs(plan: Plan) -> None:
    done = plan(*LLAMA, "--top", "3", "-v")
    assert done.code == 0 and done.err == ""
    for word in (
        "llama3-8b (8.0B parameters) on h100x8",
        "with risk",
        "90% of such runs",
        "MFU",
        "OOM",
        "bound by",
        "step time",
        "memory",
    ):
        assert word in done.out
    for word in ("optimizer", "activations", "layouts considered", "not tried:"):
        assert word in done.out


def test_a_plan_is_short_unless_all_is_asked_for(plan: Plan) -> None:
    done = plan(*LLAMA)
    lines = done.out.splitlines()
    assert done.code == 0 and len(lines) <= 26 and lines[1].startswith("best: ")
    for word in ("step:", "memory:", "activations", "layouts considered"):
        assert word in done.out
    assert "not tried:" not in done.out and len(plan(*LLAMA, "-v").out.splitlines()) > 35


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


def test_a_layout_that_breaks_a_rule_is_explained_by_it(plan: Plan) -> None:
    done = plan(*LLAMA, "--explain", "TP3")
    assert done.code == 1
    assert re.search(r"rule: .*n_gpus .*tp\*pp\*cp", done.out)


def test_a_what_if_shows_both_and_the_gain(plan: Plan) -> None:
    done = plan(*LLAMA, "--what-if", "mem=+60,gpus=16", "--top", "1")
    assert "what if mem=+60,gpus=16" in done.out and "gain: +" in done.out and "per GPU" in done.out
    shown = as_json(plan(*LLAMA, "--what-if", "gpus=16", "--json"))
    assert (shown["before"]["num_gpus"], shown["after"]["num_gpus"]) == (8, 16)
    assert shown["gain"] > 0.5


def test_the_front_is_shown_over_gpus_too(plan: Plan) -> None:
    points = as_json(plan(*LLAMA, "--pareto", "--json"))["pareto"]
    assert len({point["layout"]["num_gpus"] for point in points}) > 1
    assert all(point["name"] in plan(*LLAMA, "--pareto").out for point in points[:3])


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


def test_nothing_that_fits_is_exit_code_1_and_says_what_it_would_take(plan: Plan) -> None:
    done = plan("--model", "llama3-405b", *LLAMA[2:])
    assert done.code == 1
    enough = json.loads(plan("--model", "llama3-405b", *LLAMA[2:], "--json").out)["enough_gpus"]
    assert f" {enough} GPUs" in done.out and "nearest" in done.out


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--model", "lama3-8b", *LLAMA[2:]], ["unknown model 'lama3-8b'", "llama3-8b"]),
        ([*LLAMA, "--cluster", "h1000x8"], ["h1000", "h100"]),
        ([*LLAMA, "--gbs", "0"], ["--gbs"]),
        ([*LLAMA, "--seq", "long"], ["--seq"]),
        ([*LLAMA[:4]], ["Missing options '--gbs', '--seq'"]),
        ([*LLAMA, "--framework", "megatorn"], ["unknown framework", "did you mean 'megatron'"]),
        ([*LLAMA, "--precision", "int3"], ["--precision", "bf16"]),
        ([*LLAMA, "--explain", "TP8 QQ2"], ["'QQ2'"]),
        ([*LLAMA, "--explain", "TP8", "--pareto"], ["--pareto", "--explain"]),
        ([*LLAMA, "--fix", "tp=x"], ["'tp=x'"]),
        ([*LLAMA, "--fix", "tp=7"], ["no layout", "8 GPUs", "tp"]),
        ([*LLAMA, "--what-if", "memory=8"], ["--what-if", "mem"]),
        ([*LLAMA, "--output", "folder"], ["--emit"]),
        ([*LLAMA, "--emit", "jax"], ["--emit"]),
        ([*LLAMA, "--risk", "2"], ["--risk"]),
        ([*LLAMA, "--layers", "8"], ["No such option", "zenithtune plan --help"]),
        ([*LLAMA, "--cluster", "h100x7", "--gbs", "3", "--max-pp", "4"], ["batch 7", "6 GPUs"]),
        ([*LLAMA, "--framework", "fsdp", "--emit", "megatron"], ["--emit megatron", "fsdp"]),
        ([*LLAMA, "--framework", "jax", "--emit", "accelerate"], ["--emit accelerate", "jax"]),
        ([*LLAMA, "--precision", "fp8", "--emit", "deepspeed"], ["bf16, fp16, fp32", "fp8"]),
        ([*LLAMA, "--fix", "zero=3"], ["zero", "0, 1", "megatron", "got 3"]),
        ([*LLAMA, "--fix", "ep=2"], ["ep must be 1", "experts", "got 2"]),
        ([*LLAMA, "--fix", "mbs=3"], ["gbs", "mbs", "64 % 3"]),
    ],
)
def test_every_mistake_is_one_line(plan: Plan, arguments: list[str], parts: list[str]) -> None:
    done = plan(*arguments)
    assert done.code == 2 and done.out == ""
    assert len(done.err.strip().splitlines()) == 1, done.err
    for part in parts:
        assert part in done.err


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
def test_help_and_usage_errors_answer_quickly(arguments: list[str]) -> None:
    argv = [sys.executable, "-m", "zenith_tune.cli.main", "plan", *arguments]
    assert_answers_quickly(lambda: subprocess.run(argv, capture_output=True, cwd=ROOT))


def test_a_rule_that_a_layout_breaks_is_an_answer_and_no_mistake_of_usage(plan: Plan) -> None:
    done = plan(*LLAMA, "--framework", "deepspeed", "--explain", "TP2 SP")
    assert done.code == 1 and "tp must be 1" in done.out and "deepspeed" in done.out


def test_where_nothing_fits_the_gpus_that_would_do_are_named(plan: Plan) -> None:
    arguments = ["--model", "llama3-405b", "--cluster", "h100x32", "--gbs", "256", "--seq", "8192"]
    done = plan(*arguments, "--json")
    enough = json.loads(done.out)["enough_gpus"]
    assert done.code == 1 and enough > 32
    assert f" {enough} GPUs" in plan(*arguments).out


def test_a_change_that_makes_a_job_fit_is_a_success(plan: Plan) -> None:
    arguments = ["--model", "llama3-70b", "--cluster", "h100x8", "--gbs", "64", "--seq", "8192"]
    assert plan(*arguments).code == 1
    done = plan(*arguments, "--what-if", "gpus=64")
    assert done.code == 0 and "nothing fits before" in done.out
    assert as_json(plan(*arguments, "--what-if", "gpus=64", "--json"))["before"]["best"] == []
    assert plan(*arguments, "--what-if", "mem=60").code == 1


def test_memory_below_what_there_is_gets_a_hint(plan: Plan) -> None:
    hint = as_json(plan(*LLAMA, "--what-if", "mem=60", "--json"))["hint"]
    assert all(part in hint for part in ("mem=60", "79.1 GiB", "mem=+60"))
    assert f"hint: {hint}" in plan(*LLAMA, "--what-if", "mem=60").out


def test_a_calibration_of_another_framework_is_warned_of(plan: Plan, tmp_path: Path) -> None:
    save_calibration(default_calibration("megatron"), tmp_path / "mine.json")
    done = plan(*LLAMA, "--framework", "fsdp", "--calibration", str(tmp_path / "mine.json"))
    assert done.code == 0 and len(done.err.splitlines()) == 1
    assert "megatron" in done.err and "fsdp" in done.err
    assert plan(*LLAMA, "--calibration", str(tmp_path / "mine.json")).err == ""


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (("--gbs", "2147483648"), "1<=x<=10000000"),
        (("--seq", "1000000000000"), "1<=x<=100000000"),
        (("--what-if", "gbs=1000000000000"), "10,000,000"),
        (("--risk", "nan"), "--risk"),
        (("--model", "http://127.0.0.1:1/x"), "Hugging Face id"),
    ],
)
def test_numbers_beyond_all_jobs_and_names_that_are_none_are_refused(
    plan: Plan, changed: tuple[str, str], words: str
) -> None:
    result = plan(*LLAMA, *changed)
    assert result.code == 2 and words in result.err and len(result.err.strip().splitlines()) == 1


def test_no_link_is_written_through(plan: Plan, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run_megatron.sh").symlink_to(victim)
    result = plan(*LLAMA, "--emit", "megatron", "--output", str(tmp_path / "out"))
    assert result.code == 2 and "--output" in result.err and "run_megatron.sh" in result.err
    assert victim.read_text() == "mine"


def test_no_larger_tensor_parallelism_is_spoken_of_where_there_are_no_more_gpus(plan: Plan) -> None:
    done = plan("--model", "llama3-70b", "--cluster", "h100x2", "--gbs", "8", "--seq", "4096")
    assert "larger sizes" not in done.out + done.err
