"""Other planners: rows as each of them wants them, and a table of what each predicts of those that it can express."""

from __future__ import annotations

import os
import shlex
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from layoutbench.predict import MEMORY, STEP, Row, ask, is_predicted, predictions_of
from tests.calibrate.made_runs import SMALL, made_runs
from tests.calibrate.test_time_fit import TRUTH
from tests.conftest import ROOT
from tests.requirements import skip
from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.layouts.layout_batch import RECOMPUTE_SELECTIVE, RECOMPUTE_UNIFORM

sys.path.insert(0, str(ROOT / "benchmarks"))
sys.path.insert(0, str(ROOT / "benchmarks" / "planner_adapters"))

import adapter
import run_calculon
import run_llm_analysis
import run_megatron_memory
import run_primus
import run_simumax
from adapter import CannotExpressError, answer, num_micro_batches
from planners import ADAPTERS, compared, markdown, others, ours, row_of

GPT_22B = ModelSpec(
    name="GPT 22B",
    num_layers=48,
    hidden=6144,
    ffn_hidden=24576,
    num_heads=64,
    num_kv_heads=64,
    head_dim=96,
    vocab=51_200,
    gated_mlp=False,
    tied_embeddings=True,
    norm_bias=True,
)
LAYOUT = {"tp": 8, "pp": 2, "dp": 2, "mbs": 4, "gbs": 64, "zero": 1, "recompute": RECOMPUTE_UNIFORM}
RUN = MeasuredRun(
    source="made up",
    framework="megatron",
    model=GPT_22B,
    model_name="GPT 22B",
    gpu="a100-80",
    num_gpus=32,
    gpus_per_node=8,
    precision="fp16",
    seq_len=2048,
    layout=LAYOUT | {"recompute_layers": 1, "sequence_parallel": False, "flash_attention": False},
    step_s=5.0,
    memory_bytes=40 * 2**30,
)


def given(**sections: dict[str, Any]) -> dict[str, Any]:
    """Return what a planner may know of the run, with changes by section."""
    row = row_of(RUN)
    assert row is not None
    found = deepcopy(dict(row.given))
    for section, changes in sections.items():
        found[section] |= changes
    return found


def test_a_row_states_the_layout_and_the_real_bandwidths_of_the_cluster() -> None:
    row = row_of(RUN)
    assert row is not None and row.measured == {STEP: 5.0, MEMORY: 40 * 2**30}
    assert row.given["layout"]["recompute"] == "full" and "gbs" not in row.given["layout"]
    assert row.given["job"] == {
        "framework": "",
        "precision": "bf16",
        "seq_len": 2048,
        "global_batch": 64,
        "memory_of": "fullest",
    }
    # A DGX A100: twelve links of NVLink 3 and 200 Gb/s for each GPU, one way.
    cluster = row.given["cluster"]
    assert (cluster["link_bytes_per_s"], cluster["network_bytes_per_s"]) == (300e9, 25e9)
    assert num_micro_batches(row.given) == 8
    assert row_of(replace(RUN, model=None)) is None and row_of(replace(RUN, step_s=None, memory_bytes=None)) is None


def test_calculon_is_given_gigabytes_per_second_and_networks_by_rank_order(tmp_path: Path) -> None:
    (tmp_path / "systems").mkdir()
    networks = '[{"bandwidth": 1, "size": 1}, {"bandwidth": 1, "size": 65536}]'
    (tmp_path / "systems" / "a100_80g.json").write_text(f'{{"mem1": {{}}, "networks": {networks}}}')
    system = run_calculon.system(given(), tmp_path)
    assert [network["bandwidth"] for network in system["networks"]] == [300, 25] and system["networks"][0]["size"] == 8
    execution = run_calculon.execution(given())
    assert (execution["num_procs"], execution["tensor_par"], execution["pipeline_par"], execution["data_par"]) == (
        32,
        8,
        2,
        2,
    )
    assert (execution["tensor_par_net"], execution["pipeline_par_net"], execution["data_par_net"]) == (0, 1, 1)
    assert (execution["activation_recompute"], execution["tensor_par_comm_type"]) == ("full", "ar")
    selective = run_calculon.execution(given(layout={"recompute": "selective", "sequence_parallel": True}))
    assert selective["tensor_par_comm_type"] == "rs_ag" and selective["seq_par_ag_redo"]
    assert run_calculon.application(given())["attn_size"] == 96


def test_llm_analysis_is_given_the_bandwidth_of_a_node_and_replicated_ranks_for_the_step() -> None:
    assert run_llm_analysis.bandwidths(given())["intra_node_bandwidth_in_GB_per_sec"] == 300
    assert run_llm_analysis.bandwidths(given())["inter_node_bandwidth_in_GB_per_sec"] == 200
    step = run_llm_analysis.parallelism(given(), for_memory=False)
    memory = run_llm_analysis.parallelism(given(), for_memory=True)
    assert (step["dp_size"], step["rdp_size"]) == (1, 2) and (memory["dp_size"], memory["rdp_size"]) == (2, 1)
    assert step["sp_size"] == 1 and run_llm_analysis.model_config(given())["ffn_embed_dim"] == 24576


def test_the_report_of_megatron_is_given_its_own_arguments() -> None:
    arguments = run_megatron_memory.arguments(given(layout={"recompute": "selective"}, model={"vocab": 50_257}))
    assert arguments["padded_vocab_size"] == 51_200, "a multiple of 128 for each rank"
    assert arguments["use_distributed_optimizer"] and not arguments["untie_embeddings_and_output_weights"]
    assert arguments["virtual_pipeline_model_parallel_size"] is None and arguments["normalization"] == "LayerNorm"


def test_simumax_is_given_micro_batches_and_a_node_with_nvlink(tmp_path: Path) -> None:
    strategy = run_simumax.strategy(given())
    assert (strategy["micro_batch_size"], strategy["micro_batch_num"], strategy["world_size"]) == (4, 8, 32)
    assert (strategy["recompute_granularity"], strategy["recompute_layer_num"]) == ("full_block", 24)
    place = tmp_path / "configs" / "system"
    place.mkdir(parents=True)
    plain = '{"bandwidth": {"gbps": 25, "efficient_factor": 0.6}, "op": {}}'
    (place / "a100_pcie.json").write_text(f'{{"networks": {{"intra_with_pcie": true, "inter_node": {plain}}}}}')
    networks = run_simumax.system(given(), tmp_path)["networks"]
    assert not networks["intra_with_pcie"] and networks["high_intra_node"]["bandwidth"]["gbps"] == 300
    assert networks["inter_node"]["bandwidth"]["gbps"] == 200, "a node's"
    stages = {"first_stage": 3.0, "middle_stage": 2.0, "last_stage": 4.0}
    assert [run_simumax.asked_stage(stages, kind) for kind in ("first", "last", "fullest")] == [3.0, 4.0, 4.0]
    assert run_simumax.asked_stage({"first_stage": 3.0}, "last") == 3.0


def test_primus_is_given_the_experts_of_each_layer() -> None:
    experts = {"experts": 8, "dense_layers": 1, "layers": 3, "moe_ffn_hidden": 64, "top_k": 2}
    assert run_primus.model_config(given(model=experts))["moe_pattern"] == [0, 1, 1]
    assert run_primus.parallelism(given())["recompute_method"] == "uniform"


@pytest.mark.parametrize(
    ("translate", "row", "reason"),
    [
        (run_calculon.application, given(model={"gated_mlp": True}), "gated"),
        (run_calculon.execution, given(layout={"cp": 2}), "context"),
        (run_megatron_memory.arguments, given(), "full recomputation"),
        (run_simumax.strategy, given(job={"precision": "fp8"}), "8 bits"),
        (run_primus.parallelism, given(layout={"zero": 3}), "sharded"),
    ],
)
def test_what_a_planner_cannot_express_is_said(translate: Any, row: dict[str, Any], reason: str) -> None:
    with pytest.raises(CannotExpressError, match=reason):
        translate(row)
    assert reason in str(answer(row, translate)[STEP])


def test_a_planner_that_fails_gives_its_reason_without_the_figures() -> None:
    def refuse(row: Any) -> Any:
        raise ValueError("heads (48) must divide by 5\nor not")

    assert answer({}, refuse)[MEMORY] == "it fails: heads (#) must divide by #"


def test_a_planner_that_takes_too_long_for_a_row_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "LIMIT_S", 0.05)

    def endless(row: Any) -> Any:
        while True:
            pass

    assert "within" in str(answer({}, endless)[STEP])


CALCULON = {
    "__init__.py": "__version__ = '0'",
    "llm.py": """
class Llm:
    class Application(dict): pass
    class Execution:
        @staticmethod
        def from_json(content): return content
    def __init__(self, app, log): self.app = app
    def compile(self, system, execution): print("noise"); self.execution = execution
    def run(self, system): self.bandwidth = system["networks"][1]["bandwidth"]
    def get_total_time(self): return self.execution["tensor_par"] * self.bandwidth
    def get_mem_tier1_cap_req(self): return 2 * self.app["hidden"]
""",
    "system.py": "System = dict",
}
"""A stand-in for Calculon, whose steps take as many seconds as GB/s and ranks of tensor parallelism."""


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    """Return a folder of trees, in a path with a space, in which only a stand-in for Calculon is."""
    tree = tmp_path / "all trees" / "calculon"
    for folder in ("calculon", "systems", ".venv/bin"):
        (tree / folder).mkdir(parents=True)
    for name, text in CALCULON.items():
        (tree / "calculon" / name).write_text(text)
    for name in ("a100_80g", "h100_80g_nvl8"):
        (tree / "systems" / f"{name}.json").write_text('{"mem1": {}, "networks": [{}, {}]}')
    (tree / ".venv" / "bin" / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (tree / ".venv" / "bin" / "python").chmod(0o755)
    return tree.parent


def test_a_planner_runs_in_its_own_interpreter_and_one_that_is_not_there_is_named(trees: Path) -> None:
    rows = [row for run in (RUN, replace(RUN, gpu="gb200")) if (row := row_of(run)) is not None]
    found = dict(others(trees, rows))
    assert found.keys() == ADAPTERS.keys()
    assert all("clone it there" in said for said in found.values() if isinstance(said, str)) and len(found) > 3
    answers = found["calculon"]
    assert not isinstance(answers, str)
    assert answers.predictions[0] == {STEP: 8 * 25.0, MEMORY: 2 * 6144.0}
    assert "GPU" in str(answers.predictions[1][STEP]) and answers.predictions[1][MEMORY] == 2 * 6144.0


def test_every_source_of_ours_is_predicted_from_the_others_and_stands_in_the_table(trees: Path) -> None:
    made = [run for run in made_runs(TRUTH, noise=0.03) if run.model == SMALL and run.step_s]
    runs = [replace(run, source=f"source {number}") for number in range(3) for run in made]
    rows = [row_of(run) or Row(source="", given={}, measured={}) for run in runs]
    mine = ours(runs, None, runs)
    assert all(is_predicted(prediction, STEP) for prediction in mine.predictions)
    theirs = replace(mine, predictions=[{STEP: 2 * row.measured[STEP]} for row in rows], version="1")
    result = predictions_of(rows, {"zenithtune": mine, "twice": compared(rows, mine, theirs)})
    twice = result["planners"]["twice"]
    assert twice["scores"]["step"]["median_abs_pct"] == pytest.approx(100)
    assert twice["same_rows"]["step"]["median_abs_pct"] < 15
    page = markdown(result | {"not_run": {"absent": "not there"}, "not_judged": {"b": 2}})
    assert "absent: not run: not there" in page and "| twice | 1 | step |" in page


EXPECTED = {
    "simumax": (1.15, 59.8),
    "calculon": (1.14, 52.1),
    "llm-analysis": (1.88, 46.7),
    "megatron-lm": (None, 56.7),
    "primus": (None, 291.7),
}
"""Seconds and GiB that each predicted on 2026-11-19 of GPT 22B on 8 A100 (arXiv 2205.05198: 1.10 s and 55.1 GiB)."""


@pytest.mark.own_environment
@pytest.mark.parametrize("name", ADAPTERS)
def test_a_real_planner_predicts_a_well_known_run_as_it_did(name: str) -> None:
    folder = Path(os.environ.get("ZENITHTUNE_PLANNERS", ""))
    python = folder / name / ".venv" / "bin" / "python"
    if not os.environ.get("ZENITHTUNE_PLANNERS") or not python.exists():
        skip("planners", f"ZENITHTUNE_PLANNERS names no folder with a clone of {name}")
    one_node = {"pp": 1, "dp": 1, "gbs": 4, "zero": 0, "recompute": RECOMPUTE_SELECTIVE}
    row = row_of(replace(RUN, num_gpus=8, layout=RUN.layout | one_node | {"sequence_parallel": True}))
    assert row is not None
    ours_of_it = {**row.given, "model": row.given["model"] | {"tied_embeddings": False}}
    script = ROOT / "benchmarks" / "planner_adapters" / ADAPTERS[name]
    answers = ask(shlex.join(map(str, (python, script, folder / name))), [replace(row, given=ours_of_it)])
    step_s, gib = EXPECTED[name]
    (found,) = answers.predictions
    assert found[STEP] == pytest.approx(step_s, rel=0.05) if step_s else isinstance(found[STEP], str)
    assert found[MEMORY] == pytest.approx(gib * 2**30, rel=0.05)
