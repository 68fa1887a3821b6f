"""The command `zenithtune guide`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_runs import Run, as_json, running
from tests.conftest import ROOT
from tests.describe.smi_samples import islands, matrix

Guide = Run


@pytest.fixture
def guide(capsys: pytest.CaptureFixture[str]) -> Guide:
    return running("guide", capsys)


def test_the_guide_stands_beside_what_the_planner_would_choose_and_why(guide: Guide) -> None:
    done = guide("70B", "--gpus", "64")
    assert done.code == 0 and done.err == ""
    title = done.out.splitlines()[0]
    for part in ("llama2-70b", "69.0B", "a100-80x64", "batch 32", "sequence 2048", "bf16"):
        assert part in title
    assert "guide    TP8 PP2 DP4 Z1 mbs1 SP: " in done.out and "planner  TP" in done.out
    shown = as_json(guide("70B", "--gpus", "64", "--json"))
    assert "% faster (" in done.out and all(reason in done.out for reason in shown["reasons"])
    assert any("DP" in reason for reason in shown["reasons"])
    assert "within 8" in done.out and "rule:" not in done.out


def test_the_documentation_shows_what_is_printed(guide: Guide) -> None:
    page = (ROOT / "docs" / "doctor.md").read_text()
    assert f"$ zenithtune guide 70B --gpus 64\n{guide('70B', '--gpus', '64').out}```" in page


@pytest.mark.parametrize("size", ["7B", "13B", "20B", "40B", "70B", "175B"])
def test_the_planner_is_no_slower_than_any_row(guide: Guide, size: str) -> None:
    shown = as_json(guide(size, "--json"))
    row, at = shown["row"], shown["guide"]["layout"]
    assert (at["tp"], at["pp"], at["dp"], at["num_micro_batches"]) == (
        row["tp"],
        row["pp"],
        row["dp"],
        row["micro_batches"],
    )
    assert shown["guide"]["fits"] and shown["guide"]["broken_rules"] == [] and shown["rules"] == []
    assert shown["gain"] >= 0 and shown["planner"]["oom_probability"] < 0.3
    assert shown["gain"] == pytest.approx(shown["guide"]["step_s"] / shown["planner"]["step_s"] - 1)


def test_rules_are_shown_where_the_table_does_not_say_it(guide: Guide) -> None:
    done = guide("30B", "--gpus", "64", "--gpu", "h100", "--seq", "8192", "--gbs", "256")
    title, *rest = done.out.splitlines()
    assert all(part in title for part in ("30B", "29.8B", "h100x64", "batch 256", "sequence 8192"))
    rules = [line for line in rest if "rule: " in line]
    for part in ("40B", "64 GPUs: DP 4 -> 8", "micro-batches 4 -> 32"):
        assert any(part in rule for rule in rules)


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (["3B"], r"rule: 3B .*\b7B"),
        (["3B", "--gpus", "4"], r"NVLink .*4 GPUs: .*\ball\b"),
        (["7B", "--gpus", "3"], r"NVLink .*3 GPUs: "),
        (["1B", "--gpus", "1"], r"rule: 1 GPU: DP 8 -> 1\n"),
        (["1T", "--gpus", "1024"], r"rule: 1000B .*\b175B"),
    ],
)
def test_small_and_large_sizes_and_few_gpus_are_shown_as_they_are(
    guide: Guide, arguments: list[str], pattern: str
) -> None:
    assert re.search(pattern, guide(*arguments).out)


@pytest.mark.parametrize("arguments", [["671B"], ["500B"], ["530B", "--gbs", "512"], ["405B"], ["3B"]])
def test_a_size_outside_the_table_has_the_planners_layout(guide: Guide, arguments: list[str]) -> None:
    shown = as_json(guide(*arguments, "--json"))
    assert shown["guide"]["layout"] == shown["planner"]["layout"] and shown["gain"] == 0
    assert shown["planner"]["oom_probability"] < 0.15
    done = guide(*arguments)
    assert "planner  TP" in done.out and "\nguide" not in done.out and "faster" not in done.out


@pytest.mark.parametrize("size", ["10B", "30B", "150B"])
@pytest.mark.parametrize("seq", ["2048", "8192"])
def test_a_choice_is_called_faster_only_where_its_step_is_shorter(guide: Guide, size: str, seq: str) -> None:
    shown, text = as_json(guide(size, "--seq", seq, "--json")), guide(size, "--seq", seq).out
    assert ("faster" in text) == (shown["planner"]["step_s"] < shown["guide"]["step_s"])
    if "slower" in text:
        assert shown["planner"]["oom_probability"] < shown["guide"]["oom_probability"]


def test_there_is_no_gain_over_what_does_not_fit(guide: Guide) -> None:
    shown = as_json(guide("13B", "--seq", "8192", "--json"))
    assert not shown["guide"]["fits"] and shown["gain"] is None


def test_a_gpu_without_bf16_is_planned_in_fp16(guide: Guide) -> None:
    done = guide("3B", "--gpu", "v100")
    assert "batch 8, sequence 2048, fp16\n" in done.out and "rule: v100-32 has no bf16: fp16" in done.out
    assert as_json(guide("3B", "--gpu", "v100", "--json"))["precision"] == "fp16"


def test_a_topology_bounds_the_guide_and_the_planner(guide: Guide, tmp_path: Path) -> None:
    node = tmp_path / "node.txt"
    node.write_text(matrix(islands([2, 2], "NV4", "SYS")))
    shown = as_json(guide("20B", "--topology", str(node), "--json"))
    assert (shown["guide"]["layout"]["tp"], shown["guide"]["layout"]["pp"]) == (2, 2)
    assert shown["planner"]["layout"]["tp"] <= 2 and shown["cluster"] == "a100-80x16 as node.txt"


def test_a_guide_that_does_not_fit_is_shown_as_such(guide: Guide) -> None:
    shown = as_json(guide("13B", "--gpu", "l40s", "--json"))
    assert not shown["guide"]["fits"] and shown["planner"]["oom_probability"] < 0.3
    assert shown["guide"]["layout"]["tp"] == shown["planner"]["layout"]["tp"] == 1
    assert "fit" in shown["reasons"][0]
    assert "no NVLink" in guide("13B", "--gpu", "l40s").out


def test_a_model_that_does_not_fit_at_all_is_exit_code_1(guide: Guide) -> None:
    done = guide("70B", "--gpus", "8")
    assert done.code == 1 and re.search(r"^planner +nothing fits; .*\(152\.", done.out, re.MULTILINE)
    done = guide("70B", "--gpus", "8", "--json")
    assert done.code == 1 and json.loads(done.out)["planner"] is None


def test_options_have_the_names_that_they_have_in_a_plan(guide: Guide) -> None:
    for words in (["70B", "--gpu", "h100", "--gpus", "64"], ["70B", "--cluster", "h100x64"]):
        assert as_json(guide(*words, "--json"))["cluster"] == "h100x64"
    shown = as_json(guide("--model", "llama3-8b", "--cluster", "h100x8", "--json"))
    assert (shown["model"], shown["row"]["billions"]) == ("llama3-8b", 13)


def test_days_and_money_are_those_of_the_planners_choice(guide: Guide) -> None:
    words = ("70B", "--cluster", "h100x64", "--tokens", "1T", "--price", "2.5")
    shown = as_json(guide(*words, "--json"))
    assert shown["cost"]["seconds"] == pytest.approx(1e12 / shown["planner"]["tokens_per_s"])
    assert "1T tokens" in guide(*words).out


def test_where_nothing_fits_the_gpus_that_would_do_are_named(guide: Guide) -> None:
    done = guide("70B", "--cluster", "h100x8", "--json")
    enough = json.loads(done.out)["enough_gpus"]
    assert enough > 8 and f"it takes {enough} GPUs" in guide("70B", "--cluster", "h100x8").out
    assert guide("70B", "--cluster", f"h100x{enough}").code == 0


def test_without_a_size_the_table_is_shown(guide: Guide) -> None:
    done = guide()
    assert done.code == 0 and [line.split() for line in done.out.splitlines()[2:8]] == [
        ["7B", "8", "1", "1", "8", "1"],
        ["13B", "8", "2", "1", "4", "1"],
        ["20B", "16", "4", "1", "4", "1"],
        ["40B", "32", "4", "2", "4", "4"],
        ["70B", "64", "8", "2", "4", "8"],
        ["175B", "128", "8", "4", "4", "16"],
    ]
    assert [row["billions"] for row in as_json(guide("--json"))["table"]] == [7, 13, 20, 40, 70, 175]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["big"], ["1B", "2000B", "'big'", "70B"]),
        (["70B", "--gpu", "h10"], ["'h10'", "h100"]),
        (["70B", "--model", "llama3-8b"], ["SIZE", "--model"]),
        (["--model", "lama3-8b"], ["unknown model 'lama3-8b'", "llama3-8b"]),
        (["70B", "--cluster", "h100x8", "--gpus", "16"], ["'h100x8'", "16"]),
        (["70B", "--tokens", "0"], ["--tokens", "'0'"]),
        (["70B", "--gpus", "12"], ["nodes of 8", "got 12", "8 or 16"]),
        (["70B", "--gpus", "0"], ["'--gpus'"]),
        (["7B", "--gbs", "12"], ["DP 8", "--gbs 12", "8 or 16"]),
        (["7B", "--seq", "-1"], ["'--seq'"]),
        (["7B", "8B"], ["(8B)"]),
        (["7B", "--wat"], ["No such option '--wat'", "zenithtune guide --help"]),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(guide: Guide, arguments: list[str], parts: list[str]) -> None:
    done = guide(*arguments)
    assert done.code == 2 and done.out == "" and done.err.count("\n") == 1
    assert all(part in done.err for part in parts), done.err


def test_a_mistake_is_reported_before_the_planner_is_loaded() -> None:
    program = (
        "import sys; from zenith_tune.cli.main import main\n"
        "try: main(sys.argv[1:])\nfinally: print('numpy' in sys.modules)"
    )
    command = [sys.executable, "-c", program, "guide", "7B", "--gbs", "12"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 2 and done.stdout == "False\n" and "--gbs 12" in done.stderr


@pytest.mark.parametrize("size", ["40B", "70B", "175B"])
def test_the_planners_choice_is_one_that_accelerate_can_run(guide: Guide, size: str) -> None:
    at = as_json(guide(size, "--json"))["planner"]["layout"]
    assert at["vp"] == 1 and at["cp"] == 1 and at["tp"] <= 8


def test_what_accelerate_cannot_run_in_any_layout_is_planned_for_megatron_with_a_rule(guide: Guide) -> None:
    shown = as_json(guide("405B", "--json"))
    assert shown["planner"]["layout"]["vp"] > 1
    assert any("Accelerate" in rule for rule in shown["rules"])
