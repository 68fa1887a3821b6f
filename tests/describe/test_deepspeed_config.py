from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from zenith_tune.describe.deepspeed_config import (
    ACCUMULATION,
    BATCH,
    MICRO_BATCH,
    STAGE,
    DsConfig,
    matters,
    read_ds_config,
    shown_json,
)
from zenith_tune.errors import UsageError
from zenith_tune.presets.deepspeed.job import refuse_listed_batch
from zenith_tune.presets.deepspeed.space import listed_axes, listed_micro_batches, listed_stages


def config(**values: Any) -> DsConfig:
    return DsConfig(values=values, source="ds.json")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{\n  "a": 1,\n  "b" 2\n}', "line 3, column 7"),
        ('{\n  "a": 1,}', "line 2"),
        ('{"a": 1, "a": 2}', 'key "a"'),
        (f'{{"a": {"[" * 90_000}}}', "must be JSON"),
        ('{"zero_optimization": "x"}', "zero_optimization must be"),
        ('{"zero_optimization": [1, 2]}', "got [1, 2]: "),
        ('{"bf16": true}', "bf16 must be"),
        ('{"a": NaN}', "NaN "),
        ("[1]", "list"),
        ("", "line 1"),
    ],
)
def test_what_is_no_json_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "ds.json"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        read_ds_config(path)
    assert said in str(error.value) and str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ds\.json"):
        read_ds_config(tmp_path / "ds.json")


def test_a_copy_has_other_values_and_the_original_stays() -> None:
    own = config(zero_optimization={"stage": 1, "overlap_comm": True}, autotuning={"enabled": True})
    copy = own.having({STAGE: 3, ("bf16", "enabled"): True, ("autotuning",): None, ("fp16", "enabled"): None})
    assert copy.values == {"zero_optimization": {"stage": 3, "overlap_comm": True}, "bf16": {"enabled": True}}
    assert own.get(STAGE) == 1 and "autotuning" in own.values
    assert json.loads(copy.text) == copy.values


def test_sizes_may_be_written_as_people_do_and_auto_is_no_number() -> None:
    own = config(train_batch_size=5e2, gradient_accumulation_steps="auto")
    assert own.count(BATCH) == 500 and own.count(ACCUMULATION) is None and own.is_auto(ACCUMULATION)
    assert own.count(MICRO_BATCH) is None and not own.is_auto(MICRO_BATCH)
    with pytest.raises(UsageError, match=r"train_batch_size.* got 0"):
        config(train_batch_size=0).count(BATCH)


def test_lists_are_axes_where_deepspeed_wants_no_list() -> None:
    own = config(
        zero_optimization={"overlap_comm": [True, False], "reduce_bucket_size": [5e7, 5e8]},
        gradient_clipping=[0.5, 1.0],
        optimizer={"params": {"betas": [0.9, 0.99]}},
        elasticity={"micro_batch_sizes": [2, 4]},
    )
    axes = listed_axes(own)
    assert {name: axis.choices for name, axis in axes.items()} == {
        "overlap_comm": (True, False),
        "reduce_bucket_size": (50_000_000, 500_000_000),
        "gradient_clipping": (0.5, 1.0),
    }
    assert not axes["overlap_comm"].matters(1) and axes["overlap_comm"].matters(2)


def test_two_lists_of_one_name_are_kept_apart() -> None:
    own = config(zero_optimization={"offload_param": {"pin": [True, False]}, "offload_optimizer": {"pin": [True]}})
    assert set(listed_axes(own)) == {"zero_optimization.offload_param.pin", "zero_optimization.offload_optimizer.pin"}


@pytest.mark.parametrize("key", ["train_batch_size", "gradient_accumulation_steps"])
def test_the_global_batch_is_one_number(key: str) -> None:
    with pytest.raises(UsageError, match=key):
        refuse_listed_batch(config(**{key: [8, 16]}))


def test_a_list_of_what_no_trial_can_take_is_refused() -> None:
    with pytest.raises(UsageError, match="overlap_comm"):
        listed_axes(config(zero_optimization={"overlap_comm": [None]}))


def test_stages_and_micro_batches_are_listed_in_order() -> None:
    assert listed_stages(config(zero_optimization={"stage": [3, 1]})) == (1, 3)
    assert listed_stages(config(zero_optimization={"stage": "all"})) == (0, 1, 2, 3)
    assert listed_stages(config(zero_optimization={"stage": 2})) is None
    assert listed_micro_batches(config(train_micro_batch_size_per_gpu=[4, 1])) == (1, 4)
    assert listed_micro_batches(config(train_micro_batch_size_per_gpu=4)) is None
    for stage in (4, [0, 7], [], "two"):
        with pytest.raises(UsageError, match=r"stage .*0, 1, 2, 3"):
            listed_stages(config(zero_optimization={"stage": stage}))
    with pytest.raises(UsageError, match="train_micro_batch_size_per_gpu"):
        listed_micro_batches(config(train_micro_batch_size_per_gpu=[0]))


def test_a_key_twice_among_very_many_is_found_at_once(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    pairs = [f'"k{number}": 1' for number in range(60_000)]
    path.write_text(f"{{{', '.join([*pairs, pairs[-1]])}}}")
    began = time.process_time()
    with pytest.raises(UsageError, match=r"k59999.*twice"):
        read_ds_config(path)
    assert time.process_time() - began < 5, "a look at all keys for each of them takes minutes"


@pytest.mark.parametrize(
    "values",
    [
        {"train_batch_size": "x" * 500_000},
        {"gradient_accumulation_steps": [1] * 100_000},
        {"zero_optimization": {"stage": "x" * 500_000}},
        {"zero_optimization": {"overlap_comm": [None] * 100_000}},
        {"zero_optimization": {"x" * 500_000: [None]}},
        {"train_micro_batch_size_per_gpu": ["x" * 500_000]},
        {"zero_optimization": "x" * 500_000},
    ],
)
def test_a_message_shows_no_more_of_a_value_than_a_line_has_room_for(tmp_path: Path, values: dict[str, Any]) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(values))
    with pytest.raises(UsageError) as error:
        own = read_ds_config(path)
        own.count(BATCH)
        refuse_listed_batch(own)
        listed_stages(own)
        listed_micro_batches(own)
        listed_axes(own)
    assert len(str(error.value)) < 500 + len(str(path))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1, True, 1.0, "1"], "1 and true are equal"),
        ([0, False], "0 and false are equal"),
        ([1, "1"], '1 and "1" are equal'),
        ([0.5, "0.5"], '0.5 and "0.5" are equal'),
    ],
)
def test_values_that_no_table_keeps_apart_are_refused(values: list[Any], said: str) -> None:
    with pytest.raises(UsageError, match="gradient_clipping") as error:
        listed_axes(config(gradient_clipping=values))
    assert said in str(error.value)


def test_a_value_that_is_listed_twice_counts_once() -> None:
    assert listed_axes(config(gradient_clipping=[2, 0.5, 2.0]))["gradient_clipping"].choices == (2, 0.5)


def test_a_digest_is_another_where_a_value_is() -> None:
    own = DsConfig(values={"a": 1, "b": {"c": 2}})
    assert own.digest == DsConfig(values={"b": {"c": 2}, "a": 1}).digest != own.having({("b", "c"): 3}).digest


def test_a_deepspeed_configuration_is_read_and_copied() -> None:
    config = DsConfig(values={"zero_optimization": {"stage": 2}})
    assert config.get(STAGE) == 2
    assert config.count(MICRO_BATCH) is None
    assert config.having({STAGE: 3}).get(STAGE) == 3


def test_a_shown_value_is_json_and_short() -> None:
    assert shown_json([True, "x"]) == '[true, "x"]'
    assert shown_json("x" * 1000)[-5:] == "xx..."


def test_a_searched_key_matters_from_its_stage_on() -> None:
    assert not matters("overlap_comm", 1)
    assert matters("overlap_comm", 2)
    assert matters("gradient_clipping", 0)
