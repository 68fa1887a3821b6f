from __future__ import annotations

import numpy as np
import pytest

from tests.layouts.specs import LLAMA_70B, MIXTRAL, job
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.layouts.candidates import Candidates
from zenith_tune.layouts.layout import Layout, layout_name, parse_layout, parse_values
from zenith_tune.layouts.layout_batch import layout_at
from zenith_tune.layouts.search_space import SearchSpace


@pytest.mark.parametrize("model", [LLAMA_70B, MIXTRAL], ids=lambda model: model.name)
def test_every_name_reads_back_as_its_layout(model: ModelSpec) -> None:
    random = np.random.default_rng(5)
    for batch in Candidates(model, job(), 64, 512, SearchSpace.named("all")).batches():
        for index in random.integers(len(batch), size=40):
            layout = layout_at(batch, int(index))
            assert parse_layout(layout_name(layout), num_gpus=64, global_batch=512) == layout


@pytest.mark.parametrize(
    "text",
    [
        "TP8 PP4 VP2 CP1 EP1 DP2 Z1 mbs1 SP full/uniform1",
        "sp mbs1 z1 vp2 pp4 tp8 full",
        "tp=8,pp=4,vp=2,zero=1,sp=on,recompute=full/uniform1",
        "tp=8, pp=4 VPP2 zero=1 sequence_parallel=true uniform1",
    ],
)
def test_a_layout_may_be_spelled_in_several_ways(text: str) -> None:
    assert parse_layout(text, num_gpus=64, global_batch=128) == Layout(
        num_gpus=64, tp=8, pp=4, vp=2, zero=1, sequence_parallel=True, recompute="full/uniform", recompute_layers=1,
        global_batch=128,
    )  # fmt: skip


def test_unfused_attention_and_blocks_are_said() -> None:
    layout = Layout(num_gpus=8, flash_attention=False, recompute="full/block", recompute_layers=5, micro_batch=2)
    assert layout_name(layout) == "DP8 mbs2 unfused full/block5"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["empty", "TP8 PP4"]),
        ("TP8 XP4", ["'XP4'", "write e.g."]),
        ("tensor=8", ["'tensor=8'"]),
        ("tp=eight", ["'tp=eight'"]),
        ("TP0", ["tp", "must be 1"]),
        ("Z4", ["zero", "0 to 3"]),
        ("TP8 TP4", ["tp twice", "8 and 4"]),
        ("selectiv", ["'selective'"]),
        ("TP8 DP3", ["tp * pp * cp * dp", "8 * 1 * 1 * 3 = 24", "not 64"]),
    ],
)
def test_a_mistake_is_one_line_with_a_hint(text: str, parts: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse_layout(text, num_gpus=64, global_batch=512)
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


def test_values_may_be_read_without_a_layout() -> None:
    assert parse_values("tp=8,pp=4,recompute=none", what="pin") == {
        "tp": 8, "pp": 4, "recompute": "none", "recompute_layers": 0
    }  # fmt: skip
