"""`zenithtune plan --topology`: tensor parallelism stays where NVLink joins the GPUs of a node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.describe.smi_samples import link_status
from tests.mentions import mentions
from tests.plan_runs import LLAMA, Plan, as_json, planning
from tests.runners.fake_nvidia_smi import put_on_path

TOPOLOGIES = ROOT / "tests" / "describe" / "topologies"


def topology(name: str) -> tuple[str, str]:
    return "--topology", str(TOPOLOGIES / f"{name}.txt")


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Plan:
    return planning(capsys)


@pytest.mark.parametrize(("name", "most"), [("l40s_pcie", 1), ("a100_pcie_pairs", 2), ("a100_two_quads", 4)])
def test_no_planned_layout_reaches_beyond_an_island(plan: Plan, name: str, most: int) -> None:
    shown = as_json(plan(*LLAMA, *topology(name), "--json"))
    assert shown["best"] and max(each["layout"]["tp"] for each in shown["best"]) <= most
    assert shown["cluster"] == f"h100x8 as {name}.txt"


def test_without_nvlink_the_pipeline_is_taken_and_the_reason_is_printed(plan: Plan) -> None:
    done = plan(*LLAMA, *topology("l40s_pcie"), "--top", "1")
    assert done.code == 0
    assert mentions(done.out.splitlines()[0], "note", "NVLink", "SYS")
    assert "\n1 PP" in done.out
    assert as_json(plan(*LLAMA, *topology("l40s_pcie"), "--json"))["tensor_parallel_reason"] in done.out


def test_a_node_with_a_switch_plans_as_the_catalog_does(plan: Plan) -> None:
    with_file = as_json(plan(*LLAMA, *topology("h100_nvswitch"), "--json"))
    without = as_json(plan(*LLAMA, "--json"))
    assert [each["name"] for each in with_file["best"]] == [each["name"] for each in without["best"]]
    assert "tensor_parallel_reason" not in without


def test_the_status_of_nvlinks_bounds_a_plan(plan: Plan, tmp_path: Path) -> None:
    (down := tmp_path / "down.txt").write_text(link_status("NVIDIA H100 80GB HBM3", [0] * 8))
    shown = as_json(plan(*LLAMA, "--topology", str(down), "--json"))
    assert {each["layout"]["tp"] for each in shown["best"]} == {1}
    assert mentions(shown["tensor_parallel_reason"], "no NVLink") and "SYS" not in shown["tensor_parallel_reason"]


def test_where_nothing_fits_inside_an_island_larger_sizes_are_planned_and_noted(plan: Plan) -> None:
    tight = ("--model", "llama3-70b", "--cluster", "h100x16", "--gbs", "16", "--seq", "4096", "--max-cp", "1")
    done = plan(*tight, *topology("l40s_pcie"), "--max-pp", "4")
    assert done.code == 0 and "nothing fits within 1" in done.out
    shown = as_json(plan(*tight, *topology("l40s_pcie"), "--max-pp", "4", "--json"))
    assert max(each["layout"]["tp"] for each in shown["best"]) > 1


def test_a_size_that_the_user_names_is_meant(plan: Plan) -> None:
    shown = as_json(plan(*LLAMA, *topology("l40s_pcie"), "--fix", "tp=4", "--json"))
    assert {each["layout"]["tp"] for each in shown["best"]} == {4}
    assert as_json(plan(*LLAMA, *topology("l40s_pcie"), "--max-tp", "8", "--json"))["best"]


def test_an_explained_layout_goes_over_the_links_of_the_node(plan: Plan) -> None:
    explain = ("--explain", "TP8 mbs1 SP Z1", "--json")
    slow = as_json(plan(*LLAMA, *topology("l40s_pcie"), *explain))
    fast = as_json(plan(*LLAMA, *explain))
    assert slow["estimate"]["time_parts_s"]["tp"] > 3 * fast["estimate"]["time_parts_s"]["tp"]


def test_the_note_goes_beside_what_is_emitted(plan: Plan) -> None:
    done = plan(*LLAMA, *topology("l40s_pcie"), "--emit", "megatron")
    assert done.code == 0 and mentions(done.err, "note", "NVLink") and "NVLink" not in done.out


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (None, "No such file or directory"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", "GPU0"),
        ("GPU0 GPU1 GPU2\nGPU0 X NV4 NV4\nGPU1 NV4 X NV4\nGPU2 NV4 NV4 X\n", "nodes of 3"),
    ],
)
def test_a_file_that_is_no_topology_of_it_is_one_line(
    plan: Plan, tmp_path: Path, content: str | None, shown: str
) -> None:
    path = tmp_path / "box.txt"
    if content is not None:
        path.write_text(content)
    done = plan(*LLAMA, "--topology", str(path))
    assert done.code == 2 and shown in done.err and done.err.count("\n") == 1


def test_this_machines_own_links_cap_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    put_on_path(tmp_path, monkeypatch, num_gpus=8, link="SYS")
    local = [each if each != "h100x8" else "local" for each in LLAMA]
    done = plan(*local, "--json")
    assert {each["layout"]["tp"] for each in as_json(done)["best"]} == {1}
    assert mentions(as_json(done)["tensor_parallel_reason"], "no NVLink")


BIG = ("--model", "llama3-70b", "--cluster", "a100x64", "--gbs", "256", "--seq", "2048", "--json", "--top", "50")


def test_the_fast_domain_of_a_named_cluster_bounds_tensor_parallelism(plan: Plan) -> None:
    shown = as_json(plan(*BIG, "--emit", "accelerate"))
    assert max(each["layout"]["tp"] for each in shown["best"]) == 8
    wide = as_json(plan(*BIG, "--emit", "accelerate", "--max-tp", "32"))
    assert max(each["layout"]["tp"] for each in wide["best"]) > 8
    assert as_json(plan(*BIG, "--fix", "tp=16"))["best"]


def test_accelerate_is_given_no_tensor_parallelism_across_nodes_where_nothing_else_fits(plan: Plan) -> None:
    large = ("--model", "llama3-405b", "--cluster", "a100x512", "--gbs", "512", "--seq", "4096", "--json")
    done = plan(*large, "--emit", "accelerate")
    assert done.code == 1 and json.loads(done.out)["best"] == []
