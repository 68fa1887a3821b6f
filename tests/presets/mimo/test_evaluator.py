from __future__ import annotations

from zenith_tune.mimo.measured_step import MeasuredStep
from zenith_tune.presets.megatron.evaluator import MegatronEvaluator
from zenith_tune.presets.mimo.evaluator import PASSES, MimoEvaluator

TOLD = MeasuredStep(passes=(), sync_s=0.001, end_s=0.02)
LINES = "".join(
    f" iteration {n}/ 3 | elapsed time per iteration (ms): 500.0 | global batch size: 16 |\n" for n in (1, 2, 3)
)


def test_the_passes_that_a_log_tells_of_are_kept_beside_the_value() -> None:
    found = MimoEvaluator(gbs=16, seq=32).measure(f"{LINES}{TOLD.line()}\n", {})
    assert found.value == 1024.0
    assert MeasuredStep.of(str(found.extra[PASSES])) == TOLD


def test_a_log_without_them_is_megatrons() -> None:
    found = MimoEvaluator(gbs=16, seq=32).measure(LINES, {})
    assert found == MegatronEvaluator(gbs=16, seq=32).measure(LINES, {})


def test_another_objective_keeps_them_too() -> None:
    found = MimoEvaluator(gbs=16, seq=32).with_objective("step_time").measure(f"{LINES}{TOLD.line()}\n", {})
    assert found.value == 0.5 and PASSES in found.extra
