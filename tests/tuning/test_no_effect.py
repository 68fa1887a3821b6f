from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.study_tools import Asks, Witness, tune
from tests.toy_preset import ToyPreset
from zenith_tune import PresetTuner, RegexEvaluator
from zenith_tune.evaluators.base import Measurement, OtherSettingsError
from zenith_tune.evaluators.failures.failures import FailureKind
from zenith_tune.evaluators.failures.no_effect import disagreement
from zenith_tune.presets.megatron.preset import MegatronLmPreset
from zenith_tune.study.parameters import Params
from zenith_tune.study.trial import Outcome, Trial

FAKE = f"{sys.executable} {ROOT / 'examples' / 'fake_megatron_train.py'} --iteration-seconds 0.001"
PRETRAIN = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --swiglu "
    "--num-attention-heads 32 --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 --vocab-size 32000"
)
DUMP = "echo '  tensor_model_parallel_size ............... 1'; echo '  micro_batch_size ............... 1'"


def study_of(folder: Path, script: str, strategy: str = "grid", **options: Any) -> Witness:
    """Tune a shell script under preset megatron, which starts a program that nobody can look into."""
    path, job, witness = folder / "train.sh", folder / "job", Witness()
    job.write_text(f"#!/bin/sh\n{script}\n")
    job.chmod(0o755)
    path.write_text(f'{job} "$@"' if '"$@"' in script else str(job))
    args = {"n_gpus": "8", "gbs": "16"}
    tuner = PresetTuner(
        f"bash {path}", "megatron", strategy, output_dir=folder / "out", tune_args=args, listener=witness, **options
    )
    tuner.optimize(n_trials=12)
    return witness


@pytest.mark.parametrize("strategy", ["grid", "random", "megatron-heuristic"])
def test_a_script_that_ignores_every_option_stops_the_study(tmp_path: Path, strategy: str) -> None:
    args = {"strategy_args": {"n_gpus": "8"}} if strategy == "megatron-heuristic" else {}
    witness = study_of(tmp_path, FAKE, strategy, **args)
    trials = [trial for trial in witness.trials if not trial.is_baseline]
    assert 3 <= len(trials) <= 6 and all(trial.ok for trial in trials), "and nothing of it is confirmed"
    assert witness.end is not None and '"$@"' in witness.end.why
    assert witness.end.diagnosis == [witness.end.why]


def test_it_is_noticed_too_where_the_log_tells_no_memory(tmp_path: Path) -> None:
    witness = study_of(tmp_path, f"{FAKE} | grep -v memory", "random")
    assert 6 <= sum(not trial.is_baseline for trial in witness.trials) <= 9
    assert witness.end is not None and '"$@"' in witness.end.why
    assert witness.end.study.fastest is witness.end.study.baseline


def test_a_script_that_hands_its_options_on_is_tuned_to_the_end(tmp_path: Path) -> None:
    witness = study_of(tmp_path, f'{FAKE} "$@"', "random", confirm=False)
    assert sum(not trial.is_baseline for trial in witness.trials) == 12


def test_a_run_that_dumps_other_arguments_fails_and_the_third_ends_the_study(tmp_path: Path) -> None:
    witness = study_of(tmp_path, f"{DUMP}; {FAKE}", "megatron-heuristic", strategy_args={"n_gpus": "8"})
    trials = [trial for trial in witness.trials if not trial.is_baseline]
    assert [(trial.outcome, trial.failure) for trial in trials] == [(Outcome.ERROR, FailureKind.NO_EFFECT)] * 3
    assert all(trial.value is None for trial in trials)
    assert witness.end is not None and "tensor_model_parallel_size" in witness.end.why


def test_a_run_that_says_it_trained_otherwise_fails_and_the_third_ends_the_study(tmp_path: Path) -> None:
    class Checks(RegexEvaluator):
        def measure(self, stdout: str, metadata: Mapping[str, Any]) -> Measurement:
            if metadata["parameters"]["x"] > 1:
                raise OtherSettingsError("it ran with stage 2")
            return super().measure(stdout, metadata)

    witness = Witness()
    evaluator, preset = Checks(r"value: (\S+)"), ToyPreset(range(1, 9))
    tune(tmp_path, preset=preset, evaluator=evaluator, strategy=Asks(*range(1, 9)), listener=witness).optimize()
    assert [trial.failure for trial in witness.trials] == [None, *[FailureKind.NO_EFFECT] * 3]
    assert witness.end is not None and "stage 2" in witness.end.why and not witness.end.study.is_sound


def test_every_lever_of_megatron_lm_that_its_log_dumps_is_compared() -> None:
    preset = MegatronLmPreset(cluster="h100x8", search="default+zero+sequence_parallel+overlap")
    preset.bind(PRETRAIN)
    point: Params = {"tp": 2, "pp": 2, "vp": 2, "cp": 1, "ep": 1, "etp": 1, "mbs": 1, "recompute": "full/uniform"}
    asked = preset.logged_as({**point, "zero": 1, "sequence_parallel": True, "overlap": "grads"})
    levers = {
        "overlap_grad_reduce": ("False", "True"),
        "recompute_granularity": ("None", "full"),
        "sequence_parallel": ("False", "True"),
        "use_distributed_optimizer": ("False", "True"),
        "virtual_pipeline_model_parallel_size": ("None", "2"),
    }
    for name, (other, wanted) in levers.items():
        assert disagreement(f"  {name} ........ {other}\n", asked) is not None, name
        assert disagreement(f"  {name} ........ {wanted}\n", asked) is None, name
    assert "sequence_parallel" not in preset.logged_as({**point, "tp": 1, "sequence_parallel": True, "zero": 1})


ZERO_CONFIG = (
    "zero_config .................. stage=2 contiguous_gradients=True reduce_scatter=True reduce_bucket_size=500000000 "
    "allgather_bucket_size=500000000 overlap_comm=False offload_param=None offload_optimizer=None sub_group_size=1 "
    "prefetch_bucket_size=50000000\n  gradient_accumulation_steps .. 4"
)
"""As DeepSpeed 0.19.8 dumps it."""


@pytest.mark.parametrize(
    ("changed", "agrees"),
    [
        ({}, True),
        ({"overlap_comm": True}, False),
        ({"reduce_bucket_size": 50_000_000}, False),
        ({"offload_optimizer": "cpu"}, False),
        ({"mbs": 4}, False),
        ({"stage": 3}, False),
        ({"stage": 1, "overlap_comm": True}, True),
    ],
    ids=["as asked", "a switch", "a size", "offloading", "accumulation", "the stage", "what has no effect"],
)
def test_every_lever_that_deepspeed_dumps_is_compared(tmp_path: Path, changed: Params, agrees: bool) -> None:
    from tests.presets.deepspeed.jobs import PLAIN, bound, command, write

    path = write(tmp_path, {**PLAIN, "train_batch_size": 32, "zero_optimization": {"stage": 2}})
    preset = bound(command(path), search="default+tuning+offload_optimizer")
    point = {name: axis.grid(9)[0] for name, axis in preset.get_search_space().items()}
    asked = {**point, "stage": 2, "mbs": 2, "overlap_comm": False, "offload_optimizer": "none", **changed}
    log = f"  zero_optimization_stage ...... {1 if changed.get('stage') == 1 else 2}\n  {ZERO_CONFIG}"
    assert (disagreement(log, preset.logged_as(asked)) is None) is agrees


def test_a_parameter_that_no_preset_calls_decisive_may_be_without_effect(tmp_path: Path) -> None:
    strategy = Asks(*range(1, 7))
    tune(tmp_path, "sh -c 'echo value: 5; : {x}'", ToyPreset(range(1, 7)), strategy=strategy).optimize()
    assert [answer.value for answer in strategy.answers] == [5.0] * 6


@pytest.mark.parametrize(
    ("log", "asked", "agrees"),
    [
        ("  tensor_model_parallel_size ...... 2\n", {"tensor_model_parallel_size": 2}, True),
        ("  tensor_model_parallel_size ...... 2\n", {"tensor_model_parallel_size": 4}, False),
        ("  zero_optimization_stage ...... 0", {"zero_optimization_stage": 1}, False),
        ("  train_micro_batch_size_per_gpu  4", {"train_micro_batch_size_per_gpu": 8}, False),
        ("Args(micro_batch_size=1, tensor_model_parallel_size=2)", {"tensor_model_parallel_size": 4}, False),
        ("defaults: micro_batch_size=1\nmicro_batch_size=4", {"micro_batch_size": 4}, True),
        ("decoder_micro_batch_size=1", {"micro_batch_size": 4}, True),
        ("no dump at all", {"micro_batch_size": 4}, True),
    ],
)
def test_what_a_log_dumps_is_compared_with_what_was_asked(log: str, asked: Params, agrees: bool) -> None:
    assert (disagreement(log, asked) is None) is agrees


def made(
    number: int,
    tp: int,
    *,
    step_s: float = 2.0,
    gib: float = 40.0,
    outcome: Outcome = Outcome.OK,
    spread: float = 0.002,
) -> Trial:
    value = None if outcome is not Outcome.OK else step_s
    params: Params = {"tp": tp, "pp": 1, "mbs": 1}
    return Trial(
        params=params,
        outcome=outcome,
        value=value,
        number=number,
        identity=str(number),
        step_s=value,
        peak_memory_bytes=int(gib * 2**30),
        spread=spread,
    )


@pytest.mark.parametrize(
    ("last", "stops"),
    [
        (made(3, 4, step_s=2.003), True),
        (made(3, 4, step_s=2.2), False),
        (made(3, 4, gib=41), False),
        (made(3, 2), False),
        (made(3, 4, outcome=Outcome.OOM), False),
        (made(3, 4, step_s=2.2, spread=0.3), False),
    ],
    ids=[
        *("all alike", "another time", "equally fast in another memory", "two points only", "one out of memory"),
        "another time within much noise",
    ],
)
def test_a_plateau_is_no_sign_but_three_points_alike_in_all_are(last: Trial, stops: bool) -> None:
    from zenith_tune import Direction
    from zenith_tune.errors import OptionsWithoutEffect
    from zenith_tune.evaluators.failures.no_effect import refuse_without_effect
    from zenith_tune.study.study import Study

    study = Study(Direction.MINIMIZE)
    for trial in (made(1, 1), made(2, 2), last):
        study.add(trial)
    if not stops:
        refuse_without_effect(study, ("tp", "pp", "mbs"))
        return
    with pytest.raises(OptionsWithoutEffect):
        refuse_without_effect(study, ("tp", "pp", "mbs"))
