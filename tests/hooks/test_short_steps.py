"""The hook that gives the first steps of Megatron's loop fewer micro-batches, on the calculator's stand-in."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import ROOT
from zenith_tune.hooks.process import PREFIX
from zenith_tune.hooks.short_steps import ShortSteps

NUMBERS, WHOLE = [2, 2, 4, 3], 16
SETTINGS = {"numbers": NUMBERS, "whole": WHOLE, "error": 0.003}


@pytest.fixture
def calculator() -> ModuleType:
    path: Path = ROOT / "tests" / "standins" / "num_microbatches_calculator.py"
    spec = importlib.util.spec_from_file_location("calculator", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def loop(calculator: ModuleType, num_steps: int) -> tuple[list[int], list[int]]:
    """Return the micro-batches of each step, and those that the loop finds between steps."""
    inside, between = [], []
    for _ in range(num_steps):
        calculator.update_num_microbatches(0, consistency_check=False, verbose=True)
        between.append(calculator.get_num_microbatches())
        calculator.update_num_microbatches(0, consistency_check=True, verbose=True)
        inside.append(calculator.get_num_microbatches())
    return inside, between


def started(calculator: ModuleType, num_micro_batches: int = WHOLE) -> None:
    calculator.init_num_microbatches_calculator(0, None, num_micro_batches * 6, 3, 2)


def test_the_first_steps_have_fewer_and_the_loop_sees_no_change(
    calculator: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    ShortSteps(SETTINGS).install(calculator)
    started(calculator)
    calculator.update_num_microbatches(96)  # as a checkpoint is loaded: no step begins
    assert loop(calculator, 6) == ([*NUMBERS, WHOLE, WHOLE], [WHOLE] * 6)
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line.removeprefix(PREFIX)) for line in lines] == [{"short_steps": {**SETTINGS, "batch": 96}}]


def test_a_run_of_another_batch_has_whole_steps(calculator: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    ShortSteps(SETTINGS).install(calculator)
    started(calculator, 12)
    assert loop(calculator, 5)[0] == [12] * 5 and capsys.readouterr().out == ""


def test_a_batch_that_ramps_up_is_left_alone(calculator: ModuleType) -> None:
    class Rampup(calculator.NumMicroBatchesCalculator):  # type: ignore[misc, name-defined]
        def update(self, consumed_samples: int, consistency_check: bool, verbose: bool = False) -> None:
            self.num_micro_batches = WHOLE

    ShortSteps(SETTINGS).install(calculator)
    calculator._CALCULATOR = Rampup()  # type: ignore[attr-defined]
    assert loop(calculator, 5)[0] == [WHOLE] * 5
