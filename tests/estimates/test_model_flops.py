from __future__ import annotations

import pytest

from tests.layouts.specs import LLAMA_70B
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.estimates.model_flops import flops_per_token, forward_flops_per_token, matrix_params


def test_gpt3_175b_matches_equation_3_of_narayanan_2021_with_causal_attention_halved() -> None:
    # F = 72 B s l h^2 (1 + s/6h + V/16lh) without recomputation (arXiv 2104.04473), its s/6h halved for the mask.
    h, layers, s, vocab = 12288, 96, 2048, 50257
    model = load_model("gpt3-175b")
    published = 72 * layers * h**2 * (1 + s / (12 * h) + vocab / (12 * layers * h))
    assert flops_per_token(model, s) == pytest.approx(published, rel=0.005)


def test_a_dense_models_matrices_are_its_parameters_without_the_input_table() -> None:
    assert matrix_params(LLAMA_70B) == pytest.approx(LLAMA_70B.num_params - LLAMA_70B.embedding_params, rel=1e-4)


def test_a_mixtures_idle_experts_do_no_work() -> None:
    model = load_model("mixtral-8x7b")
    assert matrix_params(model) == pytest.approx(model.num_active_params - model.embedding_params, rel=1e-3)


def test_flops_match_narayanan_equation_2() -> None:
    gpt3 = ModelSpec(
        name="gpt3",
        num_layers=96,
        hidden=12288,
        ffn_hidden=49152,
        num_heads=96,
        num_kv_heads=96,
        head_dim=128,
        vocab=51200,
        gated_mlp=False,
        tied_embeddings=True,
    )
    ours, theirs = (
        forward_flops_per_token(gpt3, 2048),
        24 * 96 * 12288**2 * (1 + 2048 / 6 / 12288 + 51200 / 12 / 96 / 12288),
    )
    assert abs(ours / theirs - 1) < 1e-3
