from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.mentions import mentions
from zenith_mimo.planning.hugging_face import causal_work, vision_work
from zenith_mimo.planning.work import ModuleWork
from zenith_tune.errors import UsageError

# As transformers count them, by sum(p.numel() for p in model.parameters()): SigLIP so400m without its head, CLIP-L/14
# without its last norm, Qwen2-VL's tower, Qwen2-0.5B (tied) and Llama 3 8B.
SIGLIP = {"model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27}
SIGLIP |= {"num_attention_heads": 16, "image_size": 224, "patch_size": 14}
CLIP = {"model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24}
CLIP |= {"num_attention_heads": 16, "image_size": 224, "patch_size": 14}
QWEN_TOWER = {"model_type": "qwen2_vl", "depth": 32, "embed_dim": 1280, "hidden_size": 3584, "num_heads": 16}
QWEN_TOWER |= {"mlp_ratio": 4, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}
QWEN2 = {"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24}
QWEN2 |= {"num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True}
LLAMA = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
LLAMA |= {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False}
WIDTH = 3584


def folder(tmp_path: Path, config: dict[str, Any]) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def params(work: ModuleWork) -> float:
    return sum(count * part.params(1) for part, count in work.stage_parts(0, 1))


@pytest.mark.parametrize(
    ("config", "expected"), [(SIGLIP, 412_442_352), (CLIP, 303_177_728), (QWEN_TOWER, 675_759_104)]
)
def test_a_tower_has_the_weights_that_transformers_count(tmp_path: Path, config: dict[str, Any], expected: int) -> None:
    work = vision_work(folder(tmp_path, config), WIDTH, num_patches=1024)
    has_projector = config is not QWEN_TOWER
    projector = (config["hidden_size"] + 1) * WIDTH if has_projector else 0
    # Of Qwen2-VL's tower the table of positions that it does not have is counted too.
    assert params(work) - projector == pytest.approx(expected, rel=4e-3)
    inside = vision_work(folder(tmp_path, {"model_type": "llava", "vision_config": config}), WIDTH, num_patches=1024)
    assert inside == work


@pytest.mark.parametrize(("config", "expected"), [(QWEN2, 494_032_768), (LLAMA, 8_030_261_248)])
def test_a_language_model_has_the_weights_that_transformers_count(
    tmp_path: Path, config: dict[str, Any], expected: int
) -> None:
    work = causal_work(folder(tmp_path, config), 2048)
    assert params(work) == expected
    # Forward takes two operations for each weight of the layers and the head, and the scores.
    layers = params(work) - work.first.params(1) - work.last.params(1)
    least = 2.0 * 2048 * (layers + config["vocab_size"] * config["hidden_size"])
    assert 1.0 < work.forward_flops(stage=0, num_stages=1, tp=1) / least < 1.25
    # Both ends of a pipeline have tied embeddings.
    twice = config["vocab_size"] * config["hidden_size"] * config["tie_word_embeddings"]
    stages = [sum(count * part.params(1) for part, count in work.stage_parts(stage, 2)) for stage in range(2)]
    assert sum(stages) == expected + twice and work.why_not_pp(2) is None
    assert work.why_not_tp(2) is None
    too_many = 7 if config is QWEN2 else 16
    assert mentions(work.why_not_tp(too_many), "key-value heads", config["num_key_value_heads"], too_many)


def test_a_tower_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"siglip_vision_model.*dinov2"):
        vision_work(folder(tmp_path, {"model_type": "dinov2"}), WIDTH)
    with pytest.raises(UsageError, match="cannot be read"):
        vision_work(tmp_path / "none", WIDTH)
