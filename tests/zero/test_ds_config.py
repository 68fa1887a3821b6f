from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zenith_tune.errors import UsageError
from zenith_tune.zero.ds_config import ACCUMULATION, BATCH, MICRO_BATCH, STAGE, DsConfig, read_ds_config
from zenith_tune.zero.listed_axes import listed_axes, listed_micro_batches, listed_stages


def config(**values: Any) -> DsConfig:
    return DsConfig(values=values, source="ds.json")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{\n  "a": 1,\n  "b" 2\n}', "line 3, column 7"),
        ('{\n  "a": 1,\n}', "line 3"),
        ('{"a": 1, "a": 2}', "key 'a' is there twice"),
        ('{"a": NaN}', "NaN is no number in JSON"),
        ("[1]", "must be a JSON object, but is a list"),
        ("", "line 1"),
    ],
)
def test_what_is_no_json_is_told_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "ds.json"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        read_ds_config(path)
    assert said in str(error.value) and str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
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
    with pytest.raises(UsageError, match=r"train_batch_size must be a whole number from 1.* but got 0"):
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


def test_two_lists_of_one_name_are_told_apart() -> None:
    own = config(zero_optimization={"offload_param": {"pin": [True, False]}, "offload_optimizer": {"pin": [True]}})
    assert set(listed_axes(own)) == {"zero_optimization.offload_param.pin", "zero_optimization.offload_optimizer.pin"}


@pytest.mark.parametrize("key", ["train_batch_size", "gradient_accumulation_steps"])
def test_the_global_batch_is_one_number(key: str) -> None:
    with pytest.raises(UsageError, match=f"{key} must be one number"):
        listed_axes(config(**{key: [8, 16]}))


def test_a_list_of_what_no_trial_can_take_is_refused() -> None:
    with pytest.raises(UsageError, match="must list numbers"):
        listed_axes(config(zero_optimization={"overlap_comm": [None]}))


def test_stages_and_micro_batches_are_listed_in_order() -> None:
    assert listed_stages(config(zero_optimization={"stage": [3, 1]})) == (1, 3)
    assert listed_stages(config(zero_optimization={"stage": "all"})) == (0, 1, 2, 3)
    assert listed_stages(config(zero_optimization={"stage": 2})) is None
    assert listed_micro_batches(config(train_micro_batch_size_per_gpu=[4, 1])) == (1, 4)
    assert listed_micro_batches(config(train_micro_batch_size_per_gpu=4)) is None
    for stage in (4, [0, 7], [], "two"):
        with pytest.raises(UsageError, match="stage must be 0, 1, 2, 3"):
            listed_stages(config(zero_optimization={"stage": stage}))
    with pytest.raises(UsageError, match="must list whole numbers"):
        listed_micro_batches(config(train_micro_batch_size_per_gpu=[0]))
