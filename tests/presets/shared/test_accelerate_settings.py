from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zenith_tune.errors import UsageError
from zenith_tune.presets.shared.accelerate_settings import (
    AccelerateSettings,
    full_key,
    is_on,
    option_value,
    read_settings,
)
from zenith_tune.presets.shared.training_files import yaml_text

WORDS = st.sampled_from(
    ["no", "~", "2", "1.5", "1e-05", "010", "12:30", "a: b", "x #y", "- a", "'", "{a}", "日", "a b"]
)
SCALARS = st.one_of(st.booleans(), st.integers(-(10**9), 10**9), st.floats(-1e6, 1e6, width=32), WORDS)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(WORDS, st.one_of(SCALARS, st.dictionaries(WORDS, SCALARS))))
def test_what_is_written_is_read_back_in_its_order(values: dict[str, Any]) -> None:
    assert list(yaml.safe_load(yaml_text(values)).items()) == list(values.items())


def test_a_file_is_read_as_accelerate_reads_it_and_written_without_what_is_unset(tmp_path: Path) -> None:
    text = "---\n# a\nnum_processes: 8 # b\nmain_process_ip: '10.0.0.1'\ngpu_ids: null\nfsdp_config: {version: 2}\n"
    (tmp_path / "own.yaml").write_text(text + "tpu_env: []\n")
    found = read_settings(tmp_path / "own.yaml")
    assert yaml.safe_load(found.text) == {
        "num_processes": 8,
        "main_process_ip": "10.0.0.1",
        "fsdp_config": {"fsdp_version": 2},
    }


def test_a_small_number_stays_a_number() -> None:
    own = AccelerateSettings(values={"deepspeed_config": {"gradient_clipping": 1e-05}})
    assert yaml.safe_load(own.text)["deepspeed_config"]["gradient_clipping"] == 1e-05


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: *x", 1),
        ("debug: true\n\ta: 1", 2),
        ("debug: true\nuse_cpu: 'open", 2),
        ("a: b: c", 1),
        ("debug: true\n  b: 2", 2),
        ("debug: [1, 2", 1),
        ("debug: \x07", None),
    ],
)
def test_bad_yaml_is_one_line_with_its_line_number(tmp_path: Path, text: str, line: int | None) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_settings(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert line is None or f"line {line}" in str(caught.value)


@pytest.mark.parametrize("text", ["# nothing", "just words", "- 1", "3: 4", "fsdp_config:\n  3: 4\nxyz: 1"])
def test_what_holds_no_keys_of_accelerate_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"own\.yaml"):
        read_settings(path)


def test_keys_of_a_section_have_their_prefix() -> None:
    assert full_key("fsdp_config", "version") == "fsdp_version"
    assert full_key("deepspeed_config", "zero_stage") == "zero_stage"


def test_settings_are_read_and_copied() -> None:
    own = AccelerateSettings(values={"num_processes": 8, "deepspeed_config": {"zero_stage": 2}})
    assert own.get("zero_stage") == 2
    assert own.having({"zero_stage": 3}).get("zero_stage") == 3
    assert own.whole("num_processes") == 8


def test_words_that_mean_yes_are_on() -> None:
    assert [is_on(value) for value in (True, "true", "False", None, 1)] == [True, True, False, False, True]


def test_the_value_of_an_option_is_read_as_in_a_file() -> None:
    assert [option_value(word) for word in ("8", "1.0", "no", "bf16", "a: b")] == [8, 1.0, False, "bf16", "a: b"]
