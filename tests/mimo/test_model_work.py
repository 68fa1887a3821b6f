"""What a plan reckons with is what the runtime builds and what the iteration lines count."""

from __future__ import annotations

import pytest

from tests.mimo.conftest import RunProgram
from tests.mimo.small_models import LANGUAGE, TWO_ENCODERS, VISION
from zenith_tune.mimo.model_work import encoder_flops, language_flops, module_work


@pytest.mark.slow
def test_every_stage_has_the_parameters_that_are_planned(run_program: RunProgram) -> None:
    counts = run_program("work")
    assert len(counts) == 2 * (3 + 3 + 6)
    for key, count in counts.items():
        name, *numbers = key.split()
        tp, pp, stage = map(int, numbers)
        parts = module_work(TWO_ENCODERS, name).stage_parts(stage, pp)
        assert sum(number * part.params(tp) for part, number in parts) == count, key


@pytest.mark.parametrize("num_stages", [1, 2])
def test_stages_together_have_the_arithmetic_of_the_module(num_stages: int) -> None:
    whole = {
        "vision": encoder_flops(VISION, LANGUAGE.transformer.hidden_size),
        "language": language_flops(LANGUAGE),
    }
    for name, flops in whole.items():
        work = module_work(TWO_ENCODERS, name)
        forward = [work.forward_flops(stage=stage, num_stages=num_stages, tp=1) for stage in range(num_stages)]
        backward = [
            work.backward_flops(stage=stage, num_stages=num_stages, tp=1, recompute=False)
            for stage in range(num_stages)
        ]
        assert sum(forward) + sum(backward) == pytest.approx(flops)
        assert backward == [2 * each for each in forward]


def test_tensor_parallelism_splits_all_but_the_embedding_of_patches() -> None:
    for name in ("vision", "language"):
        work = module_work(TWO_ENCODERS, name)
        whole, half = (work.forward_flops(stage=0, num_stages=1, tp=tp) for tp in (1, 2))
        assert half == pytest.approx((whole + work.first.whole_flops) / 2)


def test_recomputation_adds_the_blocks_forward_and_not_the_ends() -> None:
    work = module_work(TWO_ENCODERS, "language")
    plain, again = (
        work.backward_flops(stage=0, num_stages=1, tp=1, recompute=recompute) for recompute in (False, True)
    )
    assert again - plain == pytest.approx(3 * work.layer.flops(1)) and work.last.flops(1) > 0
