"""A layout of the planner's is named where it is clearly faster than the run, and nowhere else."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from tests.command_runs import running
from tests.describe.smi_samples import matrix, uniform
from tests.doctor.runs import run_of
from tests.planner.planners import planner
from zenith_tune.describe.topology import parse_topology, with_topology
from zenith_tune.doctor.diagnosed_run import RunOrigin
from zenith_tune.doctor.diagnosis import diagnose, diagnosis_lines
from zenith_tune.doctor.diagnosis_input import DiagnosisInput
from zenith_tune.doctor.planner_advice import better_layout, emit_command
from zenith_tune.estimates.workload import Estimate
from zenith_tune.layouts.layout import parse_layout
from zenith_tune.layouts.layout_batch import LayoutBatch
from zenith_tune.planner.planner import Planner

FAR = "TP8 CP2 mbs1 SP Z1"
MEGATRON = RunOrigin(emit="megatron")


def far(origin: RunOrigin = MEGATRON, framework: str = "megatron") -> str:
    """Return how the planner's layout is shown."""
    return "\n".join(diagnosis_lines(diagnose(run_of(FAR, cluster="h100x16", origin=origin, framework=framework))))


def test_a_layout_that_is_clearly_faster_is_advised_with_its_gain_and_what_writes_it() -> None:
    run = run_of(FAR, cluster="h100x16", origin=MEGATRON)
    advice = better_layout(run, over=0.0)
    assert advice is not None and advice.gain >= 0.1 and advice.planned.oom_probability < run.risk
    assert advice.gain == pytest.approx(run.planned.step_s / advice.planned.step_s - 1)
    assert advice.command in far() and advice.planned.name in far()


UNLINKED = matrix(uniform(8, "SYS"))


@pytest.mark.parametrize("layout", ["TP2 PP4 mbs1 SP full/uniform1", "TP2 PP2 DP2 Z1 mbs1 SP full/uniform1"])
@pytest.mark.parametrize("gbs", [2, 8])
def test_no_advice_leaves_what_nvlink_joins(layout: str, gbs: int) -> None:
    at = planner("llama3-8b", "h100x8", seq_len=8192)
    at.cluster = with_topology(at.cluster, parse_topology(UNLINKED), "node.txt")
    run = DiagnosisInput.of(at, parse_layout(layout, num_gpus=8, global_batch=gbs), origin=MEGATRON)
    advice = diagnose(run).advice
    assert advice and all(each.planned.layout.tp <= run.layout.tp for each in advice)
    assert all(each.planned.layout.tp == 1 for each in advice if each.name == "better_layout")


def test_nodes_that_the_catalog_has_otherwise_linked_have_no_command() -> None:
    at = planner("llama3-8b", "h100x8", seq_len=8192)
    at.cluster = with_topology(at.cluster, parse_topology(UNLINKED), "node.txt")
    run = DiagnosisInput.of(at, parse_layout("PP8 mbs1", num_gpus=8, global_batch=8), origin=MEGATRON)
    assert emit_command(run, run.layout) == ""


def test_the_command_writes_that_very_layout(capsys: pytest.CaptureFixture[str]) -> None:
    advice = better_layout(run_of(FAR, cluster="h100x16", origin=MEGATRON), over=0.0)
    assert advice is not None
    program, command, *words = shlex.split(advice.command)
    assert (program, command) == ("zenithtune", "plan")
    done = running("plan", capsys)(*words)
    assert done.code == 0, done.err
    at = advice.planned.layout
    assert f"--micro-batch-size {at.micro_batch}" in done.out and f"# {advice.planned.name} for llama3-8b" in done.out


def test_a_run_that_is_about_as_fast_as_the_planners_best_is_left_alone() -> None:
    run = run_of("TP2 mbs1 SP Z1", origin=MEGATRON)
    assert better_layout(run, over=0.0) is None and diagnose(run).is_healthy


def test_a_change_that_brings_about_as_much_is_enough() -> None:
    run = run_of(FAR, cluster="h100x16", origin=MEGATRON)
    advice = better_layout(run, over=0.0)
    assert advice is not None and better_layout(run, over=advice.gain - 0.05) is None


def test_what_the_study_has_run_is_not_named_again() -> None:
    first = better_layout(run_of(FAR, cluster="h100x16", origin=MEGATRON), over=0.0)
    assert first is not None
    tried = RunOrigin(emit="megatron", tried=frozenset({first.planned.layout}))
    second = better_layout(run_of(FAR, cluster="h100x16", origin=tried), over=0.0)
    assert second is not None and second.planned.layout != first.planned.layout


def test_a_layout_is_one_that_the_format_can_say() -> None:
    run = run_of("TP8 PP2 mbs1 SP Z1", cluster="h100x16", origin=RunOrigin(emit="accelerate"))
    advice = better_layout(run, over=0.0)
    assert advice is not None and (advice.planned.layout.vp, advice.planned.layout.cp) == (1, 1)
    assert advice.planned.layout.recompute != "selective" and advice.command.endswith("--emit accelerate")


@pytest.mark.parametrize(
    ("origin", "framework"), [(RunOrigin(), "megatron"), (RunOrigin(emit="deepspeed"), "megatron")]
)
def test_what_no_format_writes_has_no_command(origin: RunOrigin, framework: str) -> None:
    run = run_of(FAR, cluster="h100x16", origin=origin, framework=framework)
    assert emit_command(run, run.layout) == ""


def test_a_precision_and_a_framework_are_part_of_the_command() -> None:
    run = run_of("Z3 mbs1", seq_len=4096, framework="fsdp", origin=RunOrigin(emit="accelerate"))
    other = parse_layout("Z2 mbs2", num_gpus=8, global_batch=64)
    words = shlex.split(emit_command(run, other))
    assert words[words.index("--framework") + 1] == "fsdp" and words[words.index("--explain") + 1] == "DP8 Z2 mbs2"
    assert "--precision" not in words


def test_nothing_is_advised_that_takes_more_memory_than_the_study_may() -> None:
    free = better_layout(run_of(FAR, cluster="h100x16", origin=MEGATRON), over=0.0)
    assert free is not None
    limit = 0.8 * free.planned.memory_bytes
    run = run_of(FAR, cluster="h100x16", origin=replace(MEGATRON, memory_limit_bytes=limit))
    context = run.planner.calibration.memory.context_bytes
    advice = better_layout(run, over=0.0)
    assert advice is not None and advice.planned.memory_bytes - context <= limit
    assert all(each.planned.memory_bytes - context <= limit for each in diagnose(run).advice)


def test_a_diagnosis_of_671b_on_1024_gpus_estimates_the_memory_of_few_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of("TP4 PP16 EP16 DP16 Z1 mbs1 SP", gbs=2048, model="deepseek-v3", cluster="h100x1024", seq_len=4096)
    estimate, sizes = Planner.estimate, []

    def counted(planner: Planner, layouts: LayoutBatch) -> Estimate:
        sizes.append(len(layouts))
        return estimate(planner, layouts)

    monkeypatch.setattr(Planner, "estimate", counted)
    diagnose(run)
    assert 0 < sum(sizes) < 4000, "of more than a hundred thousand, whose time without that of memory is enough"


def test_the_fastest_layouts_are_those_of_a_plan() -> None:
    run = run_of("TP2 PP4 Z1 mbs1 SP", gbs=64)
    plan = run.planner.plan(64, top=8)
    found = run.planner.fastest(64, lambda planned: True, top=8)
    assert found[0].layout == plan.best[0].layout and len(plan.best) == 8
    assert run.planner.fastest(64, lambda planned: True, at_most_s=plan.best[0].step_s / 2) == []
