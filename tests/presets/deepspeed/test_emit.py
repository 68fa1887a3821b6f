from __future__ import annotations

import json

import pytest

from tests.mentions import mentions
from tests.presets.targets import target
from zenith_tune.errors import UsageError
from zenith_tune.presets.deepspeed.emit import emit_deepspeed


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_batch_is_micro_batch_times_accumulation_times_ranks(stage: int) -> None:
    config = json.loads(emit_deepspeed(target(zero=stage, micro_batch=2, framework="deepspeed")).text)
    product = config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"] * 64
    assert product == config["train_batch_size"] == 512
    assert config["zero_optimization"]["stage"] == stage
    assert config["bf16"]["enabled"] is True


def test_recomputation_is_the_models_own_affair() -> None:
    [note] = emit_deepspeed(target()).notes
    assert mentions(note, 512, 64, "micro-batch 1", 8)
    assert "gradient checkpointing" in emit_deepspeed(target(recompute="full/uniform", recompute_layers=1)).notes[1]


def test_a_layout_that_cuts_the_model_is_refused() -> None:
    with pytest.raises(UsageError, match=r"TP8 PP2 DP4 mbs1 .*tp and pp"):
        emit_deepspeed(target(tp=8, pp=2))


@pytest.mark.parametrize("precision", ["fp8", "mxfp8", "nvfp4"])
def test_a_precision_that_deepspeed_has_no_key_for_is_refused(precision: str) -> None:
    with pytest.raises(UsageError, match=f"bf16, fp16, fp32.*{precision}"):
        emit_deepspeed(target(precision=precision))
