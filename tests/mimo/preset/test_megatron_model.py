"""The work of the modules that Megatron-LM's MIMO example builds, trained and frozen."""

from __future__ import annotations

import pytest

from tests.mimo.preset.test_megatron import COMMAND, HYBRID, MODEL, ROOMY, bound, point
from zenith_mimo.planning.prediction import activation_numbers, state_bytes
from zenith_mimo.preset.megatron_model import megatron_language
from zenith_tune.describe.megatron.args import MegatronArgs


def test_nemotron_nano_has_its_published_parameters() -> None:
    # Nemotron 3 Nano, technical report of December 2025: 23 Mamba, 23 MoE and 6 attention layers, 31.6 B parameters.
    pattern = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
    assert len(pattern) == 52
    words = f"{MODEL} {HYBRID}".replace("MEMEM*EMEMEM*EMEMEM*", pattern).replace(
        "--num-query-groups 8", "--num-query-groups 2"
    )
    work = megatron_language(MegatronArgs.of(words.split()))
    params = work.num_layers * work.layer.params(1) + work.first.params(1) + work.last.params(1)
    assert params == pytest.approx(31.6e9, rel=0.02)


@pytest.mark.parametrize(
    ("freezing", "tower", "projector", "language"),
    [
        ("", 2, 2, 2),
        ("--freeze-vit", 0, 1, 2),
        ("--freeze-vit --freeze-projection", 0, 0, 2),
        ("--freeze-projection", 2, 1, 2),
        ("--freeze-lm", 2, 2, 1),
        ("--freeze-lm --freeze-vit", 0, 1, 1),
    ],
)
def test_gradients_go_through_what_is_frozen_to_what_is_trained_before_it(
    freezing: str, tower: int, projector: int, language: int
) -> None:
    job = bound(f"{COMMAND} {freezing}", **ROOMY).space.read.job
    encoder, llm = job.encoder, job.language
    assert (encoder.layer.backward_share, encoder.last.backward_share) == (tower, projector)
    assert {part.backward_share for part in (llm.first, llm.layer, llm.last)} == {language}
    forward = llm.forward_flops(stage=0, num_stages=1, tp=1)
    assert llm.backward_flops(stage=0, num_stages=1, tp=1, recompute=False) == pytest.approx(language * forward)


def test_a_frozen_language_model_keeps_its_activations_and_loses_its_optimizer() -> None:
    trained, frozen = (bound(f"{COMMAND}{more}", **ROOMY) for more in ("", " --freeze-lm"))
    before, after = (each.space.predict(point()).language_stage_s for each in (trained, frozen))
    assert 0.6 * before < after < 0.8 * before
    at, device = trained.space.candidate(point()).language, trained.space.read.job.device
    works = [each.space.read.job.language for each in (trained, frozen)]
    kept = [activation_numbers(work, at, 0, recompute=False) for work in works]
    assert kept[0] == kept[1] > 0
    params = sum(count * part.params(at.tp, 4) for part, count in works[0].stage_parts(0, 1))
    states = [state_bytes(work, at, 0, device, expert_ranks=4) for work in works]
    # In bf16: weight 2, gradient 4, and 12 of the optimizer that the two replicas share out.
    assert states == [pytest.approx(params * (2 + 4 + 12 / 2)), pytest.approx(params * 2)]


def test_a_frozen_tower_keeps_nothing_and_its_projector_is_trained() -> None:
    trained, frozen, all_frozen = (
        bound(f"{COMMAND}{more}", **ROOMY).space.read.job.encoder
        for more in ("", " --freeze-vit", " --freeze-vit --freeze-projection")
    )
    at = bound(**ROOMY).space.candidate(point()).encoder
    kept = [activation_numbers(work, at, 0, recompute=False) for work in (trained, frozen, all_frozen)]
    assert kept[0] > 20 * kept[1] and kept[1] == kept[2] + frozen.last.kept(at.tp)
    assert [part.is_trained for part in (frozen.first, frozen.layer, frozen.last)] == [False, False, True]
    assert {part.backward_share for part in (all_frozen.first, all_frozen.layer, all_frozen.last)} == {0}
