"""The examples of job."""

from __future__ import annotations

from zenith_tune.presets.torchtitan.job import model_name


def test_a_configuration_names_a_model_of_the_catalog() -> None:
    assert model_name({"model.name": "qwen3", "model.flavor": "30B-A3B"}) == "qwen3-30b-a3b"
    assert model_name({"config": "llama3_8b"}) == "llama3-8b"
