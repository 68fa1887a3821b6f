from __future__ import annotations

import pytest

from tests.mentions import mentions
from zenith_tune.errors import UsageError
from zenith_tune.planner.size_guide import CATALOG, TABLE, guide_row, is_outside, parse_size, size_guide, sized_model

SPEC = [
    (7, 8, 1, 1, 8, 1),
    (13, 8, 2, 1, 4, 1),
    (20, 16, 4, 1, 4, 1),
    (40, 32, 4, 2, 4, 4),
    (70, 64, 8, 2, 4, 8),
    (175, 128, 8, 4, 4, 16),
]
"""Model, GPUs, TP, PP, DP and micro-batches, as they are specified."""


@pytest.mark.parametrize(("size", "gpus", "tp", "pp", "dp", "micro_batches"), SPEC)
def test_the_table_is_reproduced(size: int, gpus: int, tp: int, pp: int, dp: int, micro_batches: int) -> None:
    found = size_guide(size, num_gpus=None, island=8, global_batch=None)
    at = found.layout
    assert (at.num_gpus, at.tp, at.pp, at.dp, at.num_micro_batches) == (gpus, tp, pp, dp, micro_batches)
    assert found.rules == () and at.micro_batch == 1


def test_every_row_multiplies_to_its_gpus() -> None:
    assert len(TABLE) == len(SPEC) and all(row.tp * row.pp * row.dp == row.num_gpus for row in TABLE)


@pytest.mark.parametrize(("size", "taken"), [(7.5, 13), (30, 40), (65, 70), (130, 175)])
def test_a_size_between_two_rows_takes_the_larger(size: float, taken: float) -> None:
    found = size_guide(size, num_gpus=None, island=8, global_batch=None)
    assert found.row.billions == taken and mentions(found.rules[0], f"{taken}B")


def test_a_size_beyond_the_table_has_more_stages() -> None:
    found = size_guide(500, num_gpus=None, island=8, global_batch=None)
    assert (found.layout.tp, found.layout.pp, found.layout.num_gpus) == (8, 16, 512)
    assert any(mentions(rule, "500B", "175B", "PP 4 -> 16") for rule in found.rules)


def test_another_number_of_gpus_changes_data_parallelism_alone() -> None:
    found = size_guide(70, num_gpus=256, island=8, global_batch=None)
    assert (found.layout.tp, found.layout.pp, found.layout.dp) == (8, 2, 16)
    (rule,) = found.rules
    assert mentions(rule, "256 GPUs", "DP 4 -> 16")


@pytest.mark.parametrize(("gpus", "sizes"), [(8, (8, 1, 1)), (4, (4, 1, 1)), (24, (8, 1, 3)), (1, (1, 1, 1))])
def test_too_few_gpus_halve_stages_first(gpus: int, sizes: tuple[int, int, int]) -> None:
    at = size_guide(70, num_gpus=gpus, island=8, global_batch=None).layout
    assert (at.tp, at.pp, at.dp) == sizes


@pytest.mark.parametrize(("island", "sizes"), [(4, (4, 4, 4)), (2, (2, 8, 4)), (1, (1, 16, 4))])
def test_tensor_parallelism_stays_inside_what_nvlink_joins(island: int, sizes: tuple[int, int, int]) -> None:
    found = size_guide(70, num_gpus=None, island=island, global_batch=None)
    assert (found.layout.tp, found.layout.pp, found.layout.dp) == sizes
    assert any(mentions(rule, "NVLink", island) for rule in found.rules)


def test_another_batch_changes_the_micro_batches_alone() -> None:
    found = size_guide(70, num_gpus=None, island=8, global_batch=512)
    assert (found.layout.num_micro_batches, found.layout.micro_batch) == (128, 1)
    assert found.rules == ("batch 512: micro-batches 8 -> 128",)


@pytest.mark.parametrize(("batch", "near"), [(12, "take 8 or 16"), (3, "take 8 or more")])
def test_a_batch_that_does_not_go_into_the_ranks_is_refused(batch: int, near: str) -> None:
    with pytest.raises(UsageError, match=f"--gbs {batch}: {near}"):
        size_guide(7, num_gpus=None, island=8, global_batch=batch)


@pytest.mark.parametrize("billions", [1, 1.5, 3, 6, 10, 20, 34, 40, 65, 100, 175, 530, 1000, 2000])
def test_a_made_up_model_has_its_size_and_can_be_cut_in_eight(billions: float) -> None:
    model = sized_model(billions)
    assert model.num_params == pytest.approx(billions * 1e9, rel=0.02)
    assert model.num_layers % 8 == model.num_heads % 8 == model.num_kv_heads % 8 == 0
    assert model.hidden == model.num_heads * model.head_dim and 1 < model.ffn_hidden / model.hidden < 4


def test_a_size_of_the_catalog_is_its_model() -> None:
    for billions, name in CATALOG.items():
        model = sized_model(billions)
        assert model.name == name and model.num_params == pytest.approx(billions * 1e9, rel=0.05)


@pytest.mark.parametrize("text", ["", "B", "-7B", "0B", "0.1B", "7M", "1e9", "9999B", "nan", "７B", "7BB"])
def test_a_text_that_is_no_size_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="1B to 2000B") as caught:
        parse_size(text)
    assert "\n" not in str(caught.value)


def test_sizes_beyond_the_table_are_outside() -> None:
    assert is_outside(3)
    assert not is_outside(30)
    assert is_outside(671)


def test_a_size_has_its_row() -> None:
    assert guide_row(30).billions == 40
    assert guide_row(70).pp == 2
    assert guide_row(400).pp == 16
    assert guide_row(400).num_gpus == 512


def test_sizes_are_read_in_billions() -> None:
    assert parse_size("70B") == 70.0
    assert parse_size("1.5b") == 1.5
    assert parse_size("13") == 13.0
    assert parse_size("1T") == 1000.0


def test_a_size_has_a_usual_model() -> None:
    model = sized_model(40)
    assert model.num_layers == 56
    assert model.hidden == 8192
    assert round(model.num_params / 1e9, 1) == 40.0
