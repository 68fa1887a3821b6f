"""What is advised of a Megatron-LM run is what a study of its command tries."""

from __future__ import annotations

import pytest

from zenith_tune.doctor.diagnosed_run import RunHints, from_command
from zenith_tune.doctor.diagnosis import Diagnosis, diagnose
from zenith_tune.doctor.diagnosis_input import DiagnosisInput
from zenith_tune.planner.planner import Planner
from zenith_tune.presets.megatron.preset import MegatronLmPreset

FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
RUNS = {
    "nothing sharded": ("llama3-8b", 1, 64, f"--tensor-model-parallel-size 4 {FULL}"),
    "no sequence parallelism": ("llama3-8b", 1, 64, "--tensor-model-parallel-size 4 --use-distributed-optimizer"),
    "a long pipeline": (
        "llama3-8b",
        1,
        64,
        "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 1 --use-distributed-optimizer",
    ),
    "many nodes": (
        "llama3-70b",
        8,
        512,
        f"--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --use-distributed-optimizer {FULL}",
    ),
    "experts": (
        "mixtral-8x7b",
        8,
        256,
        f"--pipeline-model-parallel-size 8 --expert-model-parallel-size 8 --use-distributed-optimizer {FULL}",
    ),
}


def command_of(name: str) -> str:
    _, nodes, gbs, options = RUNS[name]
    job = f"--seq-length 8192 --bf16 --global-batch-size {gbs} --micro-batch-size 1"
    return f"torchrun --nproc-per-node 8 --nnodes {nodes} pretrain_gpt.py {job} {options}"


def diagnosed(name: str) -> Diagnosis:
    model, nodes, *_ = RUNS[name]
    run = from_command(command_of(name), RunHints(args={"model": model, "cluster": f"h100x{8 * nodes}"}))
    planner = Planner(run.subject.model, run.subject.cluster, run.subject.job)
    return diagnose(DiagnosisInput.of(planner, run.layout, origin=run.origin))


@pytest.mark.parametrize("name", list(RUNS))
def test_every_layout_that_is_advised_is_a_point_of_the_default_study(name: str) -> None:
    diagnosis = diagnosed(name)
    advised = [advice.planned.layout for advice in diagnosis.advice]
    assert advised
    model, nodes, *_ = RUNS[name]
    preset = MegatronLmPreset(cluster=f"h100x{8 * nodes}", model=model)
    preset.bind(command_of(name))
    tried = {preset.layout(point) for point in preset.points()}
    assert set(advised) <= tried


def test_advice_for_a_narrow_study_names_what_a_default_one_would_try() -> None:
    preset = MegatronLmPreset(cluster="h100x8", model="llama3-8b", search="mbs")
    preset.bind(command_of("nothing sharded"))
    (advice, *_) = diagnosed("nothing sharded").advice
    assert preset.tries(advice.planned.layout) and advice.planned.layout.recompute == "none"
