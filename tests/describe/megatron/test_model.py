"""The examples of model."""

from __future__ import annotations

from dataclasses import replace

from zenith_tune.describe.megatron.args import MegatronArgs
from zenith_tune.describe.megatron.model import expert_layers, model_from_args, model_name
from zenith_tune.describe.model_catalog import catalog_model


def test_expert_layers_are_a_pattern_or_every_nth() -> None:
    assert expert_layers("([0]*1+[1]*3)", 4) == [False, True, True, True]
    assert expert_layers("2", 4) == [True, False, True, False]


def test_a_model_is_read_from_its_options() -> None:
    args = [
        "--num-layers",
        "2",
        "--hidden-size",
        "64",
        "--num-attention-heads",
        "4",
        "--swiglu",
        "--vocab-size",
        "1000",
    ]
    assert model_from_args(MegatronArgs.of(args)).ffn_hidden == 128


def test_a_model_is_named_by_its_shape() -> None:
    assert model_name(replace(catalog_model("llama3-8b"), name="", vocab=128_512)) == "llama3-8b"
    assert model_name(replace(catalog_model("llama3-8b"), name="", num_layers=16)) == "llama-like 4.5B"
