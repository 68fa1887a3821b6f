from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.describe.hub_configs import CATALOG_TWINS, OTHERS
from zenith_tune.describe.config_spec import model_spec_from_config
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import ModelConfigError

LLAMA = CATALOG_TWINS["llama3-70b"]
MIXTRAL = CATALOG_TWINS["mixtral-8x7b"]
QWEN3_MOE = CATALOG_TWINS["qwen3-30b-a3b"]
DEEPSEEK = CATALOG_TWINS["deepseek-v3"]
COUNTS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def read(config: dict[str, Any]) -> ModelSpec:
    return model_spec_from_config(config, "the config")


def refusal(config: dict[str, Any]) -> str:
    with pytest.raises(ModelConfigError) as caught:
        read(config)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 500
    assert message.startswith("the config") and "llama3-8b" in caught.value.hint
    return message


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


@pytest.mark.parametrize("name", CATALOG_TWINS)
def test_a_config_gives_the_shape_that_the_catalog_has(name: str) -> None:
    assert replace(read(CATALOG_TWINS[name]), name=name) == load_model(name)


@pytest.mark.parametrize("name", OTHERS)
def test_parameters_of_other_families_match_the_published_count(name: str) -> None:
    published, config = OTHERS[name]
    assert read(config).num_params == pytest.approx(published, rel=0.005)


def test_a_nested_language_model_is_found_and_takes_what_it_lacks_from_the_whole() -> None:
    text = without(CATALOG_TWINS["llama3.2-1b"], "model_type", "tie_word_embeddings")
    vision = {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "vocab_size": 7}
    whole = {"model_type": "llama", "tie_word_embeddings": True, "text_config": text, "vision_config": vision}
    assert replace(read(whole), name="llama3.2-1b") == load_model("llama3.2-1b")


def test_every_missing_key_is_named_in_one_line() -> None:
    missing = "hidden_size, num_attention_heads, num_hidden_layers, vocab_size, intermediate_size"
    assert missing in refusal({"model_type": "llama"})
    mixture = "hidden_size, num_attention_heads, moe_intermediate_size, num_experts_per_tok, num_hidden_layers"
    assert mixture in refusal({"model_type": "mixtral", "num_local_experts": 8})
    assert " vocab_size " in refusal(without(LLAMA, "vocab_size"))
    assert " moe_intermediate_size, num_experts_per_tok " in refusal(
        without(MIXTRAL, "intermediate_size", "num_experts_per_tok")
    )
    assert " qk_nope_head_dim, qk_rope_head_dim, v_head_dim " in refusal(
        without(DEEPSEEK, "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    )
    assert " intermediate_size " in refusal(without(DEEPSEEK, "intermediate_size"))
    assert " n_positions " in refusal(without(CATALOG_TWINS["gpt2"], "n_positions"))
    assert "hidden_size" in refusal({})


def test_a_head_dimension_must_be_given_where_heads_do_not_divide_the_width() -> None:
    assert " head_dim " in refusal({**LLAMA, "num_attention_heads": 24})
    assert read({**LLAMA, "num_attention_heads": 24, "head_dim": 128}).query_size == 24 * 128


def test_an_unknown_family_is_read_by_its_activation_or_refused() -> None:
    assert read({**LLAMA, "model_type": "new", "hidden_act": "silu"}).gated_mlp
    assert not read({**LLAMA, "model_type": "new", "hidden_act": "relu2"}).gated_mlp
    for config in ({"model_type": "new"}, {"model_type": None}, {"model_type": "new", "hidden_act": "sine"}):
        message = refusal({**LLAMA, **config})
        assert "model_type" in message and "hidden_act" in message


def test_what_a_config_says_of_biases_and_norms_overrides_its_family() -> None:
    plain = read(LLAMA)
    assert (plain.qkv_bias, plain.linear_bias, plain.qk_norm) == (False, False, False)
    assert read({**LLAMA, "attention_bias": True}).qkv_bias
    assert read({**LLAMA, "attention_bias": True, "mlp_bias": True}).linear_bias
    assert read({**LLAMA, "use_qk_norm": True}).qk_norm
    assert not read({**CATALOG_TWINS["qwen2.5-7b"], "qkv_bias": False}).qkv_bias
    message = refusal({**LLAMA, "use_qk_norm": "yes"})
    assert "use_qk_norm" in message and "'yes'" in message


@pytest.mark.parametrize(
    ("extra", "dense"),
    [
        ({"mlp_only_layers": [0, 1]}, 2),
        ({"first_k_dense_replace": 3}, 3),
        ({"first_k_dense_replace": 0}, 0),
        ({"moe_layer_freq": [0] + [1] * 47}, 1),
        ({"moe_layer_freq": [1] * 48}, 0),
        ({"moe_layer_freq": 1, "decoder_sparse_step": 1}, 0),
    ],
)
def test_dense_layers_that_come_first_are_counted(extra: dict[str, Any], dense: int) -> None:
    model = read({**QWEN3_MOE, **extra})
    assert (model.num_dense_layers, model.num_moe_layers) == (dense, 48 - dense)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("decoder_sparse_step", 2),
        ("interleave_moe_layer_step", 2),
        ("moe_layer_freq", 2),
        ("moe_layer_freq", [0, 1] * 24),
        ("moe_layer_freq", ["junk", {}]),
        ("mlp_only_layers", [5]),
        ("mlp_only_layers", "all"),
    ],
)
def test_dense_layers_among_the_others_are_refused(key: str, value: object) -> None:
    assert f": {key} " in refusal({**QWEN3_MOE, key: value})


@pytest.mark.parametrize(
    "extra",
    [{"mamba_d_state": 16}, {"linear_num_key_heads": 16}, {"hybrid_override_pattern": "M-M*"}, {"ssm_cfg": {"d": 1}}],
)
def test_a_model_with_other_layers_than_attention_is_refused(extra: dict[str, Any]) -> None:
    assert f" {next(iter(extra))}" in refusal({**LLAMA, **extra})


def test_an_encoder_with_a_decoder_is_refused() -> None:
    assert "is_encoder_decoder" in refusal({**LLAMA, "is_encoder_decoder": True})


def test_contradictions_are_refused_with_their_values() -> None:
    assert "64 and 7" in refusal({**LLAMA, "num_key_value_heads": 7})
    assert "9 of 8" in refusal({**MIXTRAL, "num_experts_per_tok": 9})
    assert "62 of 61" in refusal({**DEEPSEEK, "first_k_dense_replace": 62})


@pytest.mark.parametrize("key", COUNTS)
@pytest.mark.parametrize("value", [0, -1, 2.0, math.nan, math.inf, "32", True, [1], {"deep": {}}, "x" * 10**6])
def test_a_value_that_is_no_count_is_refused_with_its_key(key: str, value: object) -> None:
    assert f": {key} " in refusal({**LLAMA, key: value})


@pytest.mark.parametrize("key", COUNTS)
def test_a_huge_value_is_refused_with_its_key(key: str) -> None:
    message = refusal({**LLAMA, key: 10**4000})
    assert f": {key} " in message and "1000000000" in message


@given(key=st.sampled_from(sorted({*MIXTRAL, *QWEN3_MOE, *DEEPSEEK})), value=JSON)
def test_junk_under_any_key_gives_a_model_or_one_line(key: str, value: object) -> None:
    for config in (MIXTRAL, QWEN3_MOE, DEEPSEEK):
        try:
            assert model_spec_from_config({**config, key: value}, "it").num_params > 0
        except ModelConfigError as error:
            assert "\n" not in str(error)


def test_a_json_file_of_a_config_round_trips() -> None:
    assert read(json.loads(json.dumps(QWEN3_MOE))) == read(QWEN3_MOE)
