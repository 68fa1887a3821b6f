from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from zenith_tune.describe.megatron.args import MegatronArgs
from zenith_tune.describe.megatron.model import model_from_args, model_name
from zenith_tune.describe.model_catalog import catalog_model, known_models
from zenith_tune.describe.model_spec import LatentAttention, ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.presets.megatron.emit import model_options

SMALL = "--num-layers 4 --hidden-size 64 --num-attention-heads 8 --vocab-size 1000"
WITHOUT_OPTION = ("bloom",)
"""Families with a part that none of Megatron's options says: a norm behind the embedding."""


def read(options: str) -> ModelSpec:
    return model_from_args(MegatronArgs.of(shlex.split(options)))


def emitted(model: ModelSpec) -> str:
    options = model_options(model, seq_len=min(model.num_positions or 4096, 4096))
    words = [
        f"--{name.replace('_', '-')}" + ("" if value is True else f" '{value}'") for name, value in options.items()
    ]
    return " ".join([*words, "--vocab-size", str(model.vocab)])


@pytest.mark.parametrize("name", [name for name in known_models() if not name.startswith(WITHOUT_OPTION)])
def test_what_is_emitted_for_a_model_is_read_back_as_that_model(name: str) -> None:
    model = catalog_model(name)
    found = read(emitted(model))
    assert found.num_params == model.num_params
    assert found.num_active_params == model.num_active_params
    # A bias on every matrix is one on queries, keys and values too, whether or not it is said twice.
    assert replace(found, qkv_bias=model.qkv_bias) == model


def test_defaults_are_megatrons_own() -> None:
    assert read(SMALL) == ModelSpec(
        name="gpt-like 0.0B",
        num_layers=4,
        hidden=64,
        ffn_hidden=256,
        num_heads=8,
        num_kv_heads=8,
        head_dim=8,
        vocab=1000,
        gated_mlp=False,
        tied_embeddings=True,
        norm_bias=True,
        linear_bias=True,
    )


@pytest.mark.parametrize(("hidden", "width"), [(4096, 10880), (2048, 5440), (64, 128)])
def test_swiglu_without_a_width_is_two_thirds_of_four_times_the_hidden_size(hidden: int, width: int) -> None:
    assert read(f"{SMALL} --hidden-size {hidden} --swiglu").ffn_hidden == width


@pytest.mark.parametrize(
    ("options", "positions"),
    [
        ("--max-position-embeddings 512", 512),
        ("--max-position-embeddings 512 --position-embedding-type learned_absolute", 512),
        ("--max-position-embeddings 512 --position-embedding-type rope", 0),
        ("--max-position-embeddings 512 --no-position-embedding", 0),
        ("--max-position-embeddings 512 --use-rotary-position-embeddings", 0),
        ("--seq-length 256", 256),
    ],
)
def test_positions_are_learned_unless_another_kind_is_named(options: str, positions: int) -> None:
    assert read(f"{SMALL} {options}").num_positions == positions


def test_query_groups_count_only_with_the_switch_that_groups_queries() -> None:
    assert read(f"{SMALL} --num-query-groups 2").num_kv_heads == 8
    assert read(f"{SMALL} --group-query-attention --num-query-groups 2").num_kv_heads == 2
    assert read(f"{SMALL} --group-query-attention").num_kv_heads == 1


@pytest.mark.parametrize(
    ("options", "vocab"),
    [
        ("--vocab-size 50257", 50257),
        ("--vocab-size 50257 --make-vocab-size-divisible-by 128", 50304),
        ("--vocab-size 129280 --make-vocab-size-divisible-by 3232", 129280),
        ("--vocab-size 50257 --padded-vocab-size 51200", 51200),
        ("--tokenizer-type Llama2Tokenizer", 32000),
        ("--tokenizer-type GPT2BPETokenizer --vocab-file v.json", 50257),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model x", 0),
    ],
)
def test_the_vocabulary_is_the_padded_one_or_that_of_a_tokenizer_that_is_known(options: str, vocab: int) -> None:
    assert read(f"--num-layers 4 --hidden-size 64 --num-attention-heads 8 {options}").vocab == vocab


def test_ranks_of_latent_attention_have_megatrons_defaults() -> None:
    found = read(f"{SMALL} --multi-latent-attention --q-lora-rank 24").latent_attention
    assert found == LatentAttention(q_rank=24, kv_rank=32, qk_nope_dim=128, qk_rope_dim=64, v_dim=128)


@pytest.mark.parametrize(
    ("options", "num_dense", "width"),
    [
        ("--num-experts 8", 0, 256),
        ("--num-experts 8 --moe-ffn-hidden-size 32", 0, 32),
        ("--num-experts 8 --moe-layer-freq '([0]*1+[1]*3)'", 1, 256),
        ("--num-experts 8 --moe-layer-freq [0]*1+[1]*3", 1, 256),
        ("--num-experts 8 --moe-layer-freq 2", 2, 256),
    ],
)
def test_experts_stand_in_the_layers_that_the_pattern_says(options: str, num_dense: int, width: int) -> None:
    found = read(f"{SMALL} {options}")
    assert (found.num_experts, found.top_k, found.num_dense_layers, found.moe_ffn_hidden) == (8, 2, num_dense, width)


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ("--hidden-size 64", ["--num-layers", "--num-attention-heads"]),
        ("--use-checkpoint-args --load x", ["--num-layers", "--hidden-size", "--num-attention-heads"]),
        (f"{SMALL} --hidden-size 65", ["--hidden-size", "--num-attention-heads", "--kv-channels", "65 % 8"]),
        (f"{SMALL} --hybrid-layer-pattern M-M-", ["--hybrid-layer-pattern", "--preset megatron"]),
        ("--num-layers '$(layers)' --hidden-size 64", ["--num-layers", "'$(layers)'"]),
        (f"{SMALL} --num-layers 0", ["--num-layers", "at least 1", "0"]),
    ],
)
def test_a_shape_that_is_not_stated_is_refused_in_one_line(options: str, shown: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        read(options)
    message = str(caught.value)
    assert "\n" not in message and [part for part in shown if part not in message] == []


@pytest.mark.parametrize(
    ("num_layers", "vocab", "name"),
    [
        (32, 128_256, "llama3-8b"),
        (32, 129_024, "llama3-8b"),
        (32, 32_000, "mistral-7b"),
        (32, 250_000, "llama-like 9.0B"),
        (8, 128_256, "llama-like 2.8B"),
    ],
)
def test_a_shape_of_the_catalog_has_its_name_and_another_says_its_kind_and_size(
    num_layers: int, vocab: int, name: str
) -> None:
    assert model_name(replace(catalog_model("llama3-8b"), name="", num_layers=num_layers, vocab=vocab)) == name


def test_a_size_is_stated_only_where_the_vocabulary_is_known() -> None:
    shape = "--num-layers 16 --hidden-size 2048 --num-attention-heads 32 --swiglu --normalization RMSNorm"
    args = f"{shape} --disable-bias-linear --position-embedding-type rope --tokenizer-type HuggingFaceTokenizer".split()
    assert model_from_args(MegatronArgs.of(args)).name == "llama-like"
    assert model_from_args(MegatronArgs.of([*args, "--vocab-size", "32000"])).name.startswith("llama-like 0.")
