"""What a plan counts is what the runtime builds, and the FLOPs that Megatron counts."""

from __future__ import annotations

import pytest

from tests.mimo.conftest import RunProgram
from tests.mimo.small_models import LANGUAGE, TWO_ENCODERS, VISION, VISION_LANGUAGE
from zenith_mimo.planning.config import TransformerConfig
from zenith_mimo.planning.work import module_work, step_flops


def blocks_flops(config: TransformerConfig, s: int, *, is_causal: bool) -> float:
    """Return 6 L s (4 h^2 + 2 h f + 2 s h), forward and backward, the last term halved under a causal mask."""
    h = config.hidden_size
    scores = s * h if is_causal else 2 * s * h
    return 6.0 * config.num_layers * s * (4 * h * h + 2 * h * config.ffn_size + scores)


def vision_flops() -> float:
    """Return the FLOPs of one item: its patches' embedding, the blocks, and the projector of two layers."""
    s, h, w = VISION.patches_per_item, VISION.transformer.hidden_size, LANGUAGE.transformer.hidden_size
    return blocks_flops(VISION.transformer, s, is_causal=False) + 6.0 * s * (VISION.patch_size * h + h * w + w * w)


def language_flops() -> float:
    """Return the FLOPs of one sequence: the blocks and the logits."""
    s, h = LANGUAGE.seq_length, LANGUAGE.transformer.hidden_size
    return blocks_flops(LANGUAGE.transformer, s, is_causal=True) + 6.0 * s * h * LANGUAGE.vocab_size


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
    for name, flops in {"vision": vision_flops(), "language": language_flops()}.items():
        work = module_work(TWO_ENCODERS, name)
        forward = [work.forward_flops(stage=stage, num_stages=num_stages, tp=1) for stage in range(num_stages)]
        backward = [
            work.backward_flops(stage=stage, num_stages=num_stages, tp=1, recompute=False)
            for stage in range(num_stages)
        ]
        assert sum(forward) + sum(backward) == pytest.approx(flops)
        assert backward == [2 * each for each in forward]


def test_a_step_has_the_flops_of_its_samples_and_items() -> None:
    assert step_flops(VISION_LANGUAGE, 8, 5) == pytest.approx(8 * language_flops() + 5 * vision_flops())


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
