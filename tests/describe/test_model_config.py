from __future__ import annotations

import json
import os
import re
import resource
import sys
from pathlib import Path
from typing import Any

import pytest

from zenith_tune.describe.model_catalog import ModelConfig, read_model_config
from zenith_tune.errors import ModelConfigError

QWEN3_8B = {"model_type": "qwen3", "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8}
THINKER_TEXT = {"num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 128}
QWEN3_OMNI = {
    "model_type": "qwen3_omni_moe",
    "talker_config": {"text_config": {"num_hidden_layers": 20, "num_attention_heads": 16, "num_key_value_heads": 2}},
    "thinker_config": {
        "audio_config": {"num_hidden_layers": 32, "encoder_layers": 32, "num_attention_heads": 20},
        "text_config": THINKER_TEXT,
        "vision_config": {"depth": 27, "num_heads": 16, "num_hidden_layers": 27, "num_attention_heads": 16},
    },
    "code2wav_config": {"num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 16},
}


def write(folder: Path, config: object) -> Path:
    path = folder / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
    return path


def read(folder: Path, config: object) -> ModelConfig:
    return read_model_config(str(write(folder, config)))


def refusal(folder: Path, config: object) -> str:
    with pytest.raises(ModelConfigError) as caught:
        read(folder, config)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder / "config.json") in message
    assert "num_layers=" in caught.value.hint and "num_query_groups=" in caught.value.hint
    return message


def test_a_plain_config_is_read_from_a_folder_or_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, QWEN3_8B)
    expected = ModelConfig(
        num_layers=36,
        num_query_groups=8,
        num_attention_heads=32,
        num_experts=None,
        is_vision_language=False,
        source=str(path),
    )
    assert read_model_config(str(tmp_path)) == expected
    assert read_model_config(str(path)) == expected


def test_a_relative_folder_that_exists_is_local_though_it_looks_like_an_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Qwen" / "Qwen3-8B").mkdir(parents=True)
    write(tmp_path / "Qwen" / "Qwen3-8B", QWEN3_8B)
    monkeypatch.chdir(tmp_path)
    assert read_model_config("Qwen/Qwen3-8B").num_layers == 36


def test_a_home_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, QWEN3_8B)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_model_config("~").num_layers == 36


def test_an_omni_models_thinker_is_its_language_part(tmp_path: Path) -> None:
    config = read(tmp_path, {"side_config": QWEN3_8B, **QWEN3_OMNI})
    assert (config.num_layers, config.num_query_groups, config.num_attention_heads) == (48, 4, 32)
    assert config.num_experts == 128
    assert config.is_vision_language


@pytest.mark.parametrize("name", ["text_config", "llm_config", "language_config", "language_model", "lm_config"])
def test_a_nested_language_config_is_found_beside_a_vision_one(tmp_path: Path, name: str) -> None:
    vision = {"num_hidden_layers": 24, "num_attention_heads": 16}
    config = read(tmp_path, {"vision_config": vision, "audio_config": vision, name: QWEN3_8B})
    assert (config.num_layers, config.num_query_groups) == (36, 8)
    assert config.is_vision_language


def test_a_nested_config_under_an_unknown_name_is_found_where_it_is_the_only_one(tmp_path: Path) -> None:
    vision = {"num_hidden_layers": 24, "num_attention_heads": 16}
    assert read(tmp_path, {"vit_config": vision, "brain": QWEN3_8B}).num_layers == 36
    assert "num_hidden_layers" in refusal(tmp_path, {"left": QWEN3_8B, "right": QWEN3_8B})


def test_the_vision_part_alone_is_not_taken_for_the_language_model(tmp_path: Path) -> None:
    vision = {"num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16}
    assert "num_hidden_layers" in refusal(tmp_path, {"vision_config": vision})


def test_a_vision_model_whose_language_keys_lie_at_the_top_is_read(tmp_path: Path) -> None:
    config = read(tmp_path, {**QWEN3_8B, "vision_config": {"depth": 32, "num_hidden_layers": 32}})
    assert (config.num_layers, config.is_vision_language) == (36, True)


@pytest.mark.parametrize("key", ["vision_config", "thinker_config", "visual", "vision_tower", "mm_vision_tower"])
def test_a_vision_key_at_any_level_makes_a_vision_language_model(tmp_path: Path, key: str) -> None:
    assert read(tmp_path, {**QWEN3_8B, key: {"depth": 32}}).is_vision_language
    assert read(tmp_path, {**QWEN3_8B, "extra": {"deeper": {key: "a name"}}}).is_vision_language


@pytest.mark.parametrize("config", [{"vision_config": None}, {"vision_start_token_id": 7}, {"audio_config": {"d": 1}}])
def test_a_model_without_a_vision_part_is_none(tmp_path: Path, config: dict[str, Any]) -> None:
    assert not read(tmp_path, {**QWEN3_8B, **config}).is_vision_language


@pytest.mark.parametrize("key", ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"])
def test_a_mixture_of_experts_is_recognised(tmp_path: Path, key: str) -> None:
    assert read(tmp_path, {**QWEN3_8B, key: 64}).num_experts == 64
    assert read(tmp_path, {"text_config": {**QWEN3_8B, key: 64}}).num_experts == 64
    for dense in (0, 1, None):
        assert read(tmp_path, {**QWEN3_8B, key: dense}).num_experts is None


def test_without_key_value_heads_every_head_is_a_group(tmp_path: Path) -> None:
    assert read(tmp_path, {"num_hidden_layers": 2, "num_attention_heads": 12}).num_query_groups == 12
    config = {"num_hidden_layers": 2, "num_attention_heads": 12, "num_key_value_heads": None}
    assert read(tmp_path, config).num_query_groups == 12


def test_older_names_are_understood(tmp_path: Path) -> None:
    gpt2 = read(tmp_path, {"n_layer": 12, "n_head": 16})
    assert (gpt2.num_layers, gpt2.num_query_groups, gpt2.num_attention_heads) == (12, 16, 16)
    chatglm = read(tmp_path, {"num_layers": 28, "num_attention_heads": 32, "multi_query_group_num": 2})
    assert (chatglm.num_layers, chatglm.num_query_groups) == (28, 2)
    falcon_7b = read(tmp_path, {"num_hidden_layers": 32, "num_attention_heads": 71, "multi_query": True})
    assert falcon_7b.num_query_groups == 1
    parts = {"attn_config": {"kv_n_heads": 8}, "ffn_config": {"moe_num_experts": 16}}
    dbrx = read(tmp_path, {"n_layers": 40, "n_heads": 48, **parts})
    assert (dbrx.num_layers, dbrx.num_query_groups, dbrx.num_experts) == (40, 8, 16)


def test_key_value_heads_without_attention_heads_are_enough(tmp_path: Path) -> None:
    config = read(tmp_path, {"num_hidden_layers": 2, "num_key_value_heads": 4})
    assert (config.num_query_groups, config.num_attention_heads) == (4, None)


@pytest.mark.parametrize("text", ["{", "", "\x00", "nonsense", "[" * 100_000])
def test_malformed_json_is_refused(tmp_path: Path, text: str) -> None:
    assert "JSON" in refusal(tmp_path, text)


def test_a_pipe_a_device_or_a_folder_in_place_of_a_config_is_refused(tmp_path: Path) -> None:
    for name, make in (("a", os.mkfifo), ("b", os.mkdir), ("c", lambda path: path.symlink_to("/dev/zero"))):
        (tmp_path / name).mkdir()
        make(tmp_path / name / "config.json")
        with pytest.raises(ModelConfigError, match=r"config\.json .*regular"):
            read_model_config(str(tmp_path / name))
    with pytest.raises(ModelConfigError, match=r"/dev/zero .*regular"):
        read_model_config("/dev/zero")


def test_a_file_of_a_gigabyte_is_refused_and_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(2**30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelConfigError, match=r"config\.json .*16 MiB"):
        read_model_config(str(tmp_path))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024


def test_a_config_behind_a_link_is_read_as_in_the_hubs_cache(tmp_path: Path) -> None:
    (tmp_path / "blob").write_text(json.dumps(QWEN3_8B))
    (tmp_path / "config.json").symlink_to("blob")
    assert read_model_config(str(tmp_path)).num_layers == 36


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x80weights")
    with pytest.raises(ModelConfigError, match="JSON"):
        read_model_config(str(tmp_path))


@pytest.mark.parametrize("config", [[], "text", 3, None, True])
def test_json_that_is_no_object_is_refused(tmp_path: Path, config: object) -> None:
    assert f"a {type(config).__name__}" in refusal(tmp_path, json.dumps(config))


def test_missing_keys_are_named(tmp_path: Path) -> None:
    assert "num_hidden_layers or n_layer" in refusal(tmp_path, {})
    message = refusal(tmp_path, {"num_hidden_layers": 4})
    assert "num_key_value_heads or num_attention_heads" in message


@pytest.mark.parametrize("key", ["num_hidden_layers", "num_attention_heads", "num_key_value_heads"])
@pytest.mark.parametrize("value", [0, -1, 2.0, "32", True, [1], {}])
def test_a_value_that_is_no_count_is_refused_with_its_key(tmp_path: Path, key: str, value: object) -> None:
    message = refusal(tmp_path, {**QWEN3_8B, key: value})
    assert f": {key} " in message and f"{value!r}" in message


@pytest.mark.parametrize("value", [-1, 2.0, "64", True])
def test_experts_that_are_no_count_are_refused_with_their_key(tmp_path: Path, value: object) -> None:
    assert ": num_experts " in refusal(tmp_path, {**QWEN3_8B, "num_experts": value})


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match=r"no config\.json.*num_layers="):
        read_model_config(str(tmp_path))


@pytest.mark.parametrize("model", ["./nothing", "../nothing", "/no/such/folder", "~/no-such-folder", "nothing.json"])
def test_a_path_where_nothing_is_does_not_go_to_the_hub(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # whoever asks for it is sent to pip
    with pytest.raises(ModelConfigError, match=re.escape(repr(model))) as caught:
        read_model_config(model)
    assert "pip install" not in str(caught.value)


@pytest.mark.parametrize("model", ["", "  "])
def test_an_empty_model_is_refused(model: str) -> None:
    with pytest.raises(ModelConfigError, match="empty"):
        read_model_config(model)


@pytest.mark.parametrize("model", ["x" * 5000, "~no-such-user/model"])
def test_a_path_that_the_system_refuses_is_named_in_one_line(model: str) -> None:
    with pytest.raises(ModelConfigError, match=model[:40]) as caught:
        read_model_config(model)
    assert "\n" not in str(caught.value)
