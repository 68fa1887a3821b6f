from __future__ import annotations

from dataclasses import replace

import pytest

from zenith_tune.describe.model_catalog import load_model
from zenith_tune.errors import ModelConfigError


def test_more_layers_than_can_be_laid_out_are_refused_at_once() -> None:
    with pytest.raises(ModelConfigError, match="1,000,000"):
        replace(load_model("llama3-8b"), num_layers=1_000_000)


def test_layers_of_a_mixture_are_dense_first_and_then_experts() -> None:
    model = load_model("deepseek-v3")
    assert (model.num_dense_layers, model.num_moe_layers) == (3, 58)
    assert (load_model("llama3-8b").num_moe_layers, load_model("llama3-8b").expert_params) == (0, 0)


def test_heads_wider_than_the_model_are_counted_by_their_own_dimension() -> None:
    model = load_model("qwen3-4b")
    assert (model.hidden, model.query_size, model.kv_size) == (2560, 4096, 2048)


def test_latent_attention_has_the_widths_that_its_kernel_sees() -> None:
    model = load_model("deepseek-v3")
    assert (model.query_size, model.value_size, model.kv_size) == (128 * 192, 128 * 128, 128 * (192 + 128))


def test_untying_the_embeddings_adds_one_table() -> None:
    model = load_model("llama3.2-1b")
    untied = replace(model, tied_embeddings=False)
    assert untied.num_params - model.num_params == 128_256 * 2048
