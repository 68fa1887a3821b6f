from __future__ import annotations

from pathlib import Path

import pytest

from tests.presets.deepspeed.jobs import PLAIN, bound, command, write
from zenith_tune.errors import UsageError
from zenith_tune.presets.deepspeed.evaluator import DeepSpeedEvaluator

LOG = "".join(f"global_step={step}, RunningAvgSamplesPerSec=1.0, CurrSamplesPerSec=4.0, \n" for step in (3, 4, 5))


@pytest.mark.parametrize(
    ("name", "same", "value"), [("samples_per_s", "throughput", 4.0), ("step_time", "latency", 16.0)]
)
def test_other_names_of_the_objectives_mean_the_same(tmp_path: Path, name: str, same: str, value: float) -> None:
    evaluator = bound(command(write(tmp_path, PLAIN))).evaluator()
    assert evaluator.with_objective(name).describe() == evaluator.with_objective(same).describe()
    assert evaluator.with_objective(name).evaluate(LOG, {}) == value and name in evaluator.objectives


def test_tflops_are_flops() -> None:
    assert DeepSpeedEvaluator("tflops", n_gpus=4, flops_per_sample=2e12).evaluate(LOG, {}) == pytest.approx(2.0)


def test_tokens_are_counted_where_the_sequence_is_known(tmp_path: Path) -> None:
    path = write(tmp_path, PLAIN)
    evaluator = bound(command(path), seq=2048).evaluator().with_objective("tokens_per_s")
    measured = evaluator.measure(LOG, {})
    assert (measured.value, measured.unit, str(evaluator.direction)) == (4.0 * 2048, "tokens/s", "maximize")
    with pytest.raises(UsageError, match=r"tokens_per_s.*--seq 2048"):
        bound(command(path)).evaluator().with_objective("tokens_per_s")
