from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.study_tools import Asks, Witness, tune
from tests.toy_preset import ToyPreset
from zenith_tune import PresetTuner
from zenith_tune.evaluators.failures.failures import FailureKind
from zenith_tune.evaluators.failures.no_effect import disagreement
from zenith_tune.study.parameters import Params
from zenith_tune.study.trial import Outcome, Trial

FAKE = f"{sys.executable} {ROOT / 'examples' / 'fake_megatron_train.py'} --iteration-seconds 0.001"
DUMP = "echo '  tensor_model_parallel_size ............... 1'; echo '  micro_batch_size ............... 1'"


def study_of(folder: Path, script: str, strategy: str = "grid", **options: Any) -> Witness:
    """Tune a shell script under preset megatron."""
    path, witness = folder / "train.sh", Witness()
    path.write_text(script)
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


def made(number: int, tp: int, *, step_s: float = 2.0, gib: float = 40.0, outcome: Outcome = Outcome.OK) -> Trial:
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
        spread=0.002,
    )


@pytest.mark.parametrize(
    ("last", "stops"),
    [
        (made(3, 4, step_s=2.003), True),
        (made(3, 4, step_s=2.2), False),
        (made(3, 4, gib=41), False),
        (made(3, 2), False),
        (made(3, 4, outcome=Outcome.OOM), False),
    ],
    ids=["all alike", "another time", "equally fast in another memory", "two points only", "one out of memory"],
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
