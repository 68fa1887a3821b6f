from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.describe.hub_configs import CATALOG_TWINS
from tests.mentions import mentions
from zenith_tune.describe.catalog import read_catalog
from zenith_tune.describe.model_catalog import known_models, load_model
from zenith_tune.errors import ModelConfigError, UnknownNameError

# Each count as its makers publish it, next to the source that the catalog names.
PUBLISHED = {
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_630_071_296,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen2-57b-a14b": 57_410_000_000,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_000_000_000,
    "moonlight-16b-a3b": 15_960_111_936,
    "kimi-k2": 1_026_000_000_000,
    "gpt-oss-20b": 20_910_000_000,
    "gpt-oss-120b": 116_830_000_000,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt3-125m": 125_000_000,
    "gpt3-350m": 356_000_000,
    "gpt3-760m": 760_000_000,
    "gpt3-1.3b": 1_320_000_000,
    "gpt3-2.7b": 2_650_000_000,
    "gpt3-6.7b": 6_660_000_000,
    "gpt3-13b": 12_850_000_000,
    "gpt3-175b": 174_600_000_000,
    "gpt-22b": 22_000_000_000,
    "gpt-530b": 530_000_000_000,
    "gpt-1t": 1_008_000_000_000,
    "bloom-560m": 559_214_592,
    "bloom-1b1": 1_065_314_304,
    "bloom-1b7": 1_722_408_960,
    "bloom-3b": 3_002_557_440,
    "bloom-7b1": 7_069_016_064,
    "bloom-176b": 176_247_271_424,
    "nemotron4-15b": 15_700_000_000,
    "nemotron4-340b": 341_000_000_000,
    "mpt-125m": 125_300_000,
    "mpt-760m": 760_500_000,
    "mpt-1b": 1_316_000_000,
    "mpt-3b": 2_651_800_000,
    "mpt-7b": 6_658_900_000,
    "mpt-13b": 12_854_000_000,
    "mpt-30b": 29_975_200_000,
    "mpt-70b": 64_862_400_000,
}
ACTIVE = {
    "mixtral-8x7b": 12.9e9,  # arXiv 2401.04088: 13B
    "qwen3-30b-a3b": 3.3e9,  # model card
    "qwen3-235b-a22b": 22e9,  # model card
    "qwen2-57b-a14b": 14.2e9,  # arXiv 2407.10671: 14B
    "deepseek-v3": 37e9,  # arXiv 2412.19437
    "kimi-k2": 32e9,  # model card
    "deepseek-v2": 21e9,  # arXiv 2405.04434
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_match_the_published_count(name: str) -> None:
    assert read_catalog("models")["models"][name]["published_params"] == PUBLISHED[name]
    assert load_model(name).num_params == pytest.approx(PUBLISHED[name], rel=0.005)


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_match_the_published_count(name: str) -> None:
    # Makers round these and some leave the embeddings out.
    assert load_model(name).num_active_params == pytest.approx(ACTIVE[name], rel=0.03)


def test_every_model_of_the_catalog_but_the_unpublished_is_checked() -> None:
    assert set(known_models()) - set(PUBLISHED) == {"mpt-350m"}
    assert load_model("mpt-350m").num_params == pytest.approx(356e6, rel=0.005)


@pytest.mark.parametrize("name", known_models())
def test_every_shape_of_the_catalog_is_consistent(name: str) -> None:
    model = load_model(name)
    assert model.name == name
    assert model.num_heads % model.num_kv_heads == 0
    assert model.top_k <= model.num_experts and bool(model.top_k) == bool(model.num_experts)
    assert model.num_dense_layers < model.num_layers
    assert min(model.hidden, model.ffn_hidden, model.head_dim, model.vocab) > 0


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("LLaMA3-70B", "llama3-70b"),
        (" llama3-8b ", "llama3-8b"),
        ("llama3.1-405b", "llama3-405b"),
        ("llama-3.3-70b", "llama3-70b"),
        ("meta-llama/Meta-Llama-3-70B", "llama3-70b"),
        ("META-LLAMA/llama-3.1-8b-instruct", "llama3-8b"),
        ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("bigscience/bloom", "bloom-176b"),
        ("gpt3", "gpt3-175b"),
    ],
)
def test_names_in_any_case_aliases_and_hub_ids_need_no_network(
    spelling: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert load_model(spelling).name == name


def test_an_unknown_name_is_answered_with_a_guess() -> None:
    with pytest.raises(UnknownNameError, match=r"'lama3-70b'.*'llama3-70b'.*mpt"):
        load_model("lama3-70b")


def test_an_unknown_name_with_odd_characters_is_answered_in_one_line() -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_model("lla\nma\0\x1b[31m")
    assert r"'lla\nma\x00\x1b[31m'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_local_config_is_read_from_a_folder_or_a_file_and_named_after_it(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CATALOG_TWINS["qwen3-8b"]))
    (tmp_path / "small.json").write_text(json.dumps(CATALOG_TWINS["gpt2"]))
    assert load_model(str(folder)).num_params == 8_190_735_360
    assert load_model(str(folder)).name == load_model(str(folder / "config.json")).name == "my-model"
    assert load_model(str(tmp_path / "small.json")).name == "small"


def test_a_local_config_comes_before_the_catalog_but_a_folder_without_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llama3-8b").mkdir()
    assert load_model("llama3-8b").num_layers == 32
    (tmp_path / "llama3-8b" / "config.json").write_text(json.dumps(CATALOG_TWINS["qwen3-8b"]))
    assert load_model("llama3-8b").num_layers == 36


def test_a_config_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(CATALOG_TWINS["gpt2"]).encode())
    assert load_model(str(tmp_path)).num_layers == 12


@pytest.mark.parametrize("model", ["", "  ", "./nothing", "/no/such/folder", "nothing.json", "x" * 5000])
def test_a_path_where_nothing_is_gets_one_line_with_a_hint(model: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        load_model(model)
    assert "\n" not in str(caught.value)
    assert mentions(caught.value.hint, "llama3-8b")


def test_a_folder_without_config_is_refused_with_what_else_can_be_done(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match=r"no config\.json"):
        load_model(str(tmp_path))


def test_a_pipe_in_place_of_a_config_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ModelConfigError, match=r"config\.json .*regular"):
        load_model(str(tmp_path))
