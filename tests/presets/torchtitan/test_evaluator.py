from __future__ import annotations

import pytest

from tests.presets.torchtitan.jobs import FIRST_STEP, READY, READY_IN_TOKENS, VALIDATION, log, steps
from zenith_tune.evaluators.base import OtherSettingsError
from zenith_tune.presets.torchtitan.evaluator import TorchTitanEvaluator
from zenith_tune.presets.torchtitan.log import TitanRun, read_steps
from zenith_tune.testing import EvaluatorContract
from zenith_tune.units import GIB

RUN = [READY.format(gbs=16, seq=2048), *steps(100, 8000, 8100, 8200)]


class TestContract(EvaluatorContract):
    def make(self) -> TorchTitanEvaluator:
        return TorchTitanEvaluator(n_gpus=8)

    def good_log(self) -> str:
        return log(*RUN)

    def bad_logs(self) -> list[str]:
        return [*super().bad_logs(), log(*steps(8000, 8000, loss="nan")), log(*steps(0, 0))]


def test_the_first_step_is_left_out_and_the_rest_is_of_all_gpus() -> None:
    found = TorchTitanEvaluator(n_gpus=8).measure(log(*RUN), {})
    assert (found.value, found.unit, found.num_samples) == (8100 * 8, "tokens/s", 3)
    assert found.step_s == pytest.approx(16 * 2048 / (8100 * 8))
    assert found.peak_memory_bytes == round(12.34 * GIB)
    assert found.extra["tflops_per_gpu"] == 409.6


def test_a_first_stage_that_knows_no_loss_has_a_speed() -> None:
    assert TorchTitanEvaluator().evaluate(log(*steps(29, 48, 57, 62, loss="-1.00000")), {}) > 0


def test_lines_of_0_1_are_read_and_those_of_validation_are_not() -> None:
    texts = [FIRST_STEP.format(step=1, tps=1820), VALIDATION.format(step=1), FIRST_STEP.format(step=2, tps=8192)]
    found = read_steps(log(*texts, rank=None)).steps
    assert [(step.number, step.gpu_tokens_per_s) for step in found] == [(1, 1820), (2, 8192)]


def test_one_rank_gives_the_speed_and_all_give_the_memory() -> None:
    both = log(*RUN) + log(*steps(50, 7000, 7000, 7000, memory=40.0), rank=3)
    found = TorchTitanEvaluator().measure(both, {})
    assert (found.value, found.unit) == (8100, "tokens/s/GPU")
    assert found.peak_memory_bytes == 40 * GIB


def test_a_step_that_every_rank_prints_without_its_number_is_one_step() -> None:
    twice = "".join(log(line, line, rank=None) for line in RUN)
    found = TorchTitanEvaluator(n_gpus=8).measure(twice, {})
    assert (found.value, found.num_samples) == (8100 * 8, 3)


def test_other_objectives() -> None:
    evaluator = TorchTitanEvaluator(n_gpus=8)
    assert evaluator.with_objective("tflops").evaluate(log(*RUN), {}) == 409.6
    assert evaluator.with_objective("step_time").evaluate(log(*RUN), {}) == pytest.approx(16 * 2048 / (8100 * 8))


@pytest.mark.parametrize("ready", [READY.format(gbs=16, seq=2048), READY_IN_TOKENS.format(tokens=16 * 2048, seq=2048)])
def test_a_run_of_another_batch_has_no_value(ready: str) -> None:
    evaluator = TorchTitanEvaluator(n_gpus=8)
    evaluator.step_tokens = lambda: 16 * 2048
    assert evaluator.evaluate(log(ready, *steps(1, 2, 3)), {}) > 0
    evaluator.step_tokens = lambda: 32 * 2048
    with pytest.raises(OtherSettingsError):
        evaluator.evaluate(log(ready, *steps(1, 2, 3)), {})


def test_half_a_line_is_no_progress_yet() -> None:
    text = log(*RUN)
    evaluator = TorchTitanEvaluator(n_gpus=8)
    whole, cut = evaluator.progress(text, {}), evaluator.progress(text[:-30], {})
    assert whole is not None and whole.num_iterations == 4 and whole.latest == 8100 * 8
    assert cut is not None and cut.num_iterations == 3
    assert evaluator.progress("", {}) is None


@pytest.mark.parametrize("tflops", ["inf", "-inf", "nan", "0.00"])
def test_a_rate_of_operations_that_is_none_is_left_out(tflops: str) -> None:
    text = log(*RUN).replace("tflops: 409.60", f"tflops: {tflops}")
    assert tflops in text
    found = TorchTitanEvaluator(n_gpus=8).measure(text, {})
    assert found.value == 8100 * 8 and "tflops_per_gpu" not in found.extra


def test_retries_of_the_allocator_are_reported() -> None:
    text = log(*RUN) + log("3 CUDA memory allocation retries.")
    assert TorchTitanEvaluator().measure(text, {}).extra["allocation_retries"] == 3


@pytest.mark.timeout(120)
def test_a_run_of_many_digits_is_read_in_no_time() -> None:
    # Under a search that begins anew at each digit this takes minutes.
    assert TitanRun.read("9" * 400_000 + " tokens per train step").step_tokens is None


def test_the_lines_of_torchtitan_have_the_speed() -> None:
    line = "step: {0:2}  loss:  8.1  grad_norm:  1.2  memory:  1.50GiB(1.9%)  tps: 1,000  tflops: 9.10\n"
    assert TorchTitanEvaluator(n_gpus=8).evaluate("".join(line.format(step) for step in (1, 2, 3)), {}) == 8000.0
