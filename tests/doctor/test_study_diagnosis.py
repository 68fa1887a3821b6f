from __future__ import annotations

from dataclasses import replace

import pytest

from tests.doctor.runs import run_of
from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.doctor.diagnosed_run import tried_layouts
from zenith_tune.doctor.diagnosis import study_diagnosis, trial_diagnosis
from zenith_tune.presets.demo import DemoPreset
from zenith_tune.presets.megatron.preset import MegatronLmPreset
from zenith_tune.presets.parts import completed
from zenith_tune.study.parameters import Direction, Params
from zenith_tune.study.study import Study
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.units import GIB, format_seconds

RUN = run_of("TP2 PP4 mbs1 SP Z1", gbs=8)
SUBJECT = PlanSubject(model=RUN.planner.model, cluster=RUN.planner.cluster, job=RUN.planner.job)


def trial(outcome: Outcome, step_s: float | None = None) -> Trial:
    return Trial(params={}, outcome=outcome, value=step_s, step_s=step_s)


COMMAND = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --swiglu "
    "--num-attention-heads 32 --group-query-attention --num-query-groups 8 --vocab-size 128256 --seq-length 8192 "
    "--disable-bias-linear --normalization RMSNorm --position-embedding-type rope --bf16 --global-batch-size 8 "
    "--untie-embeddings-and-output-weights --use-distributed-optimizer --sequence-parallel --micro-batch-size 1 "
    "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4"
)
POINT: Params = {"tp": 2, "pp": 1, "vp": 1, "cp": 1, "ep": 1, "etp": 1, "mbs": 1, "recompute": "none"}


def study(*trials: Trial) -> Study:
    found = Study(Direction.MINIMIZE)
    for each in trials:
        found.add(each)
    return found


def test_the_fastest_run_of_a_study_is_diagnosed_the_users_own_command_included() -> None:
    preset = MegatronLmPreset(cluster="h100x8")
    preset.bind(COMMAND)
    own = Trial(params={}, outcome=Outcome.OK, value=1.3, step_s=1.3, is_baseline=True)
    first = study_diagnosis(preset, COMMAND, study(own))[0]
    assert "27%" in first and "bubble" in first
    better = Trial(params=POINT, outcome=Outcome.OK, value=0.9, step_s=0.9)
    (line,) = study_diagnosis(preset, COMMAND, study(own, better))
    assert "compute " in line and not line.startswith("1. ")


def test_what_the_study_has_tried_is_not_proposed_again() -> None:
    preset = MegatronLmPreset(cluster="h100x8")
    preset.bind(COMMAND)
    own = Trial(params={}, outcome=Outcome.OK, value=1.3, step_s=1.3, is_baseline=True)
    proposed = study_diagnosis(preset, COMMAND, study(own))[1]
    assert "pp 4 -> 1, dp 1 -> 4" in proposed
    slower = Trial(params=POINT, outcome=Outcome.OK, value=1.4, step_s=1.4)
    assert proposed not in study_diagnosis(preset, COMMAND, study(own, slower))


@pytest.mark.parametrize("measured_s", [0.8, 1.3, 1.6])
def test_an_advised_gain_starts_from_the_measured_step(measured_s: float) -> None:
    preset = MegatronLmPreset(cluster="h100x8")
    preset.bind(COMMAND)
    own = Trial(params={}, outcome=Outcome.OK, value=measured_s, step_s=measured_s, is_baseline=True)
    lines = [line for line in study_diagnosis(preset, COMMAND, study(own)) if "predicted +" in line]
    assert lines and all(f"({format_seconds(measured_s)} -> " in line for line in lines)


def test_a_winner_whose_lever_recomputes_nothing_is_not_advised_to_recompute_less() -> None:
    preset = MegatronLmPreset(cluster="h100x8")
    preset.bind(COMMAND)
    full: Params = {**POINT, "recompute": "full/uniform1"}
    own = Trial(params=full, outcome=Outcome.OK, value=1.1, step_s=1.1)
    assert any("recompute full/uniform1 -> none" in line for line in study_diagnosis(preset, COMMAND, study(own)))
    best = replace(own, params={**full, "modules": "none"})
    assert not any("recompute" in line for line in study_diagnosis(preset, COMMAND, study(best)))


def test_points_that_a_preset_does_not_understand_were_not_tried() -> None:
    preset = MegatronLmPreset(cluster="h100x8")
    preset.bind(COMMAND)
    layout = preset.planned_layout(COMMAND, POINT)
    points: list[Params] = [POINT, {"tp": "many"}]
    assert tried_layouts(preset, COMMAND, points, but=replace(layout, tp=1)) == {layout}
    assert tried_layouts(preset, COMMAND, points, but=layout) == frozenset()


def test_the_layout_of_the_users_own_command_was_tried_too() -> None:
    preset = MegatronLmPreset(cluster="h100x8")
    preset.bind(COMMAND)
    own = preset.planned_layout(COMMAND, preset.own_point(COMMAND) or {})
    assert tried_layouts(preset, COMMAND, [{}, POINT], but=preset.planned_layout(COMMAND, POINT)) == {own}


def test_a_study_whose_trials_ran_out_of_memory_gets_what_helps() -> None:
    preset = MegatronLmPreset(cluster="h100x8")
    preset.bind(COMMAND)
    failed = Trial(params={**POINT, "tp": 1}, outcome=Outcome.OOM)
    first, *ways = study_diagnosis(preset, COMMAND, study(failed))
    assert "out of memory" in first and any(line.startswith("  fits") for line in ways)


def test_a_study_of_which_nothing_is_known_is_passed_over() -> None:
    preset = MegatronLmPreset(cluster="h100x4")
    preset.bind(COMMAND)
    better = Trial(params=POINT, outcome=Outcome.OK, value=0.9, step_s=0.9)
    assert study_diagnosis(preset, COMMAND, study()) == []
    assert study_diagnosis(preset, COMMAND, study(better)) == [], "the cluster has too few GPUs"
    assert study_diagnosis(completed(DemoPreset()), "python train.py", study(better)) == []


def test_the_best_trial_of_a_study_gets_what_limits_it() -> None:
    lines = trial_diagnosis(SUBJECT, RUN.layout, trial(Outcome.OK, 1.3))
    assert "27%" in lines[0] and "bubble" in lines[0] and "pp 4 -> 1" in lines[1]
    assert lines[2].strip().startswith("predicted +")


def test_a_trial_that_ran_out_of_memory_gets_what_helps() -> None:
    lines = trial_diagnosis(SUBJECT, RUN.layout, trial(Outcome.OOM))
    assert "out of memory" in lines[0] and any(line.startswith("  fits") for line in lines)


def test_a_layout_that_cannot_be_estimated_is_passed_over() -> None:
    assert trial_diagnosis(SUBJECT, replace(RUN.layout, tp=3), trial(Outcome.OK, 1.3)) == []


def test_a_limit_on_memory_holds_for_what_is_proposed() -> None:
    preset = MegatronLmPreset(cluster="h100x8")
    preset.bind(COMMAND)
    peak = round(14 * GIB)
    own = Trial(params={}, outcome=Outcome.OK, value=1.3, step_s=1.3, is_baseline=True, peak_memory_bytes=peak)
    limited = study(own)
    assert any("pp 4 -> 1" in line for line in study_diagnosis(preset, COMMAND, limited))
    limited.limit_memory(15 * GIB)
    assert not any("pp 4 -> 1" in line for line in study_diagnosis(preset, COMMAND, limited))
