"""The examples of cluster spec."""

from __future__ import annotations

from zenith_tune.describe.cluster_spec import even_domain, precision_class


def test_every_spelling_of_a_precision_has_its_class() -> None:
    assert precision_class("FP8-MX") == "mxfp8"
    assert precision_class("nvfp4") == "fp4"
    assert precision_class("amp_bf16") == "bf16"
    assert precision_class("float8") == "fp8"
    assert precision_class("fp8 current scaling") == "fp8"
    assert precision_class("float8 rowwise") == "fp8-rowwise"


def test_gpus_are_spread_evenly_over_fast_domains() -> None:
    assert even_domain(256, 4, 72) == 64
    assert even_domain(144, 4, 72) == 72
    assert even_domain(64, 8, 8) == 8
