from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.study_tools import PRINT_X, Asks, Witness, tune
from tests.toy_preset import ToyPreset
from zenith_tune import PresetTuner, RegexEvaluator, TuningEvaluator, TuningPreset, TuningStrategy
from zenith_tune.layouts.layout import Layout
from zenith_tune.strategies.grid import GridStrategy
from zenith_tune.study.parameters import CategoricalParameter, Direction, Parameter, Params, Value
from zenith_tune.study.trial import Outcome

FAKE = "python examples/fake_megatron_train.py --iteration-seconds 0.001"
TRAIN = 'echo "ran $1 $2" >> ran.txt; echo "value: $(($1 * 10 + $2))"'


class StagesPreset(TuningPreset):
    """Search a stage and a micro-batch of a script that takes both; without them it has stage 0 and micro-batch 1."""

    def get_search_space(self) -> dict[str, Parameter]:
        return {"stage": CategoricalParameter([0, 1]), "mbs": CategoricalParameter([1, 2, 4])}

    def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
        return f"sh train.sh {params['stage']} {params['mbs']}"

    def get_recommended_strategy(self) -> TuningStrategy:
        return GridStrategy()

    def evaluator(self) -> TuningEvaluator:
        return RegexEvaluator(r"value: (\S+)", direction=Direction.MAXIMIZE)

    def own_point(self, command: str) -> Params | None:
        return {"stage": 0, "mbs": 1}


class OwnX(ToyPreset):
    """Know that a command without placeholders has x=2, and the batch that a point trains."""

    def __init__(self, batch: int | None = None) -> None:
        super().__init__()
        self.batch = batch

    def own_point(self, command: str) -> Params | None:
        return {"x": 2}

    def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
        return f"echo value: {params['x']}"

    def layout(self, params: Mapping[str, Value]) -> Layout | None:
        return None if self.batch is None else Layout(num_gpus=1, global_batch=self.batch)


@pytest.mark.parametrize("strategy", ["grid", "random", "optuna", "zero-progressive"])
def test_no_strategy_runs_the_settings_of_the_own_command_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.sh").write_text("[ $# = 0 ] && set -- 0 1\n" + TRAIN)
    witness = Witness()
    tuner = PresetTuner(
        "sh train.sh", StagesPreset(), strategy, output_dir=tmp_path / "out", listener=witness, confirm=False
    )
    tuner.optimize(n_trials=6)
    ran = Path("ran.txt").read_text().splitlines()
    assert ran.count("ran 0 1") == 1
    assert len(ran) == len(set(ran))
    assert {trial.value for trial in witness.repeated if trial.params == {"stage": 0, "mbs": 1}} == {1.0}


def test_the_heuristic_does_not_run_the_default_layout_of_the_demo_again(tmp_path: Path) -> None:
    witness = Witness()
    args = {"n_gpus": "2", "gbs": "16", "mbs_max": "1"}
    PresetTuner(FAKE, "megatron", tune_args=args, output_dir=tmp_path, listener=witness, confirm=False).optimize()
    assert [trial.params["tp"] for trial in witness.repeated] == [1]
    ones = {"tp": 1, "ep": 1, "mbs": 1, "recompute_granularity": "full"}
    assert not [trial for trial in witness.trials if ones.items() <= dict(trial.params).items()]


def test_the_own_run_answers_without_a_trial_of_the_budget(tmp_path: Path) -> None:
    strategy = Asks(2, 1, 3)
    tune(tmp_path, "echo value: 5", OwnX(), strategy=strategy).optimize(n_trials=2)
    assert [(answer.value, answer.outcome) for answer in strategy.answers] == [
        (5.0, Outcome.OK),
        (1.0, Outcome.OK),
        (3.0, Outcome.OK),
    ]


def test_a_point_whose_command_is_the_own_one_is_answered_by_it(tmp_path: Path) -> None:
    witness, strategy = Witness(), Asks(1, 2)
    tune(tmp_path, "echo value: 7", strategy=strategy, listener=witness).optimize()
    assert [answer.value for answer in strategy.answers] == [7.0, 7.0]
    assert [trial.is_baseline for trial in witness.trials] == [True]


def test_an_own_command_that_ran_out_of_memory_answers_so(tmp_path: Path) -> None:
    strategy = Asks(2, 1)
    command = "sh -c 'echo torch.OutOfMemoryError: CUDA out of memory.; exit 1'"
    tune(tmp_path, command, OwnX(), strategy=strategy).optimize()
    assert [(answer.outcome, answer.value) for answer in strategy.answers] == [(Outcome.OOM, None), (Outcome.OK, 1.0)]


def test_an_own_command_with_another_batch_does_not_answer(tmp_path: Path) -> None:
    strategy = Asks(2)
    command = """python -c "print('value: 5')" --global-batch-size 32"""
    tune(tmp_path, command, OwnX(batch=16), strategy=strategy).optimize()
    assert [answer.value for answer in strategy.answers] == [2.0]


def test_a_command_with_placeholders_has_no_own_run(tmp_path: Path) -> None:
    strategy = Asks(2)
    tune(tmp_path, PRINT_X, strategy=strategy).optimize()
    assert [answer.is_baseline for answer in strategy.answers] == [False]


def test_the_own_settings_are_the_best_where_they_are_all_there_is(tmp_path: Path) -> None:
    assert tune(tmp_path, "echo value: 5", OwnX(), strategy=Asks(2)).optimize() == (5.0, {"x": 2})
