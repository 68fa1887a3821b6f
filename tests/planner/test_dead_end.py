from __future__ import annotations

from dataclasses import replace

import pytest

from tests.layouts.specs import LLAMA_70B, MIXTRAL, MODELS, job
from tests.mentions import mentions
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.layouts.candidates import Candidates
from zenith_tune.layouts.layout import parse_values
from zenith_tune.layouts.search_space import SearchSpace
from zenith_tune.planner.infeasible import DeadEnd


def dead_end(model: ModelSpec, num_gpus: int, global_batch: int, space: SearchSpace | None = None) -> DeadEnd:
    where = space or SearchSpace()
    return DeadEnd(model=model, job=job(), num_gpus=num_gpus, global_batch=global_batch, space=where)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_dead_end_is_where_there_are_no_candidates(model: ModelSpec) -> None:
    seen = set()
    for num_gpus in (1, 7, 8, 11, 48, 127):
        for global_batch in (1, 3, 7, 8, 60):
            is_open = dead_end(model, num_gpus, global_batch).has_layouts()
            assert is_open == (Candidates(model, job(), num_gpus, global_batch).count > 0), (num_gpus, global_batch)
            seen.add(is_open)
    assert seen == {True, False}


def test_what_is_named_as_nearest_works() -> None:
    hint = dead_end(LLAMA_70B, 127, 7).error().hint
    assert mentions(hint, "batch 127", "127 GPUs", "126 GPUs", "batch 7")
    assert dead_end(LLAMA_70B, 127, 127).has_layouts() and dead_end(LLAMA_70B, 126, 7).has_layouts()


def test_what_is_nearest_is_what_the_framework_can_cut() -> None:
    legacy = replace(dead_end(LLAMA_70B, 127, 7), job=job("megatron-deepspeed"))
    assert mentions(legacy.error().hint, "128 GPUs", "batch 7")
    assert not replace(legacy, num_gpus=126).has_layouts()


@pytest.mark.parametrize(
    ("pinned", "shown"),
    [
        ({"tp": 16}, ["n_gpus", "tp", "8 % 16"]),
        ({"dp": 3}, ["n_gpus", "dp", "8 % 3"]),
        ({"tp": 4, "pp": 4}, ["n_gpus", "tp*pp", "4*4 = 16"]),
        ({"mbs": 3}, ["gbs", "mbs", "64 % 3"]),
        ({"dp": 4, "mbs": 5}, ["gbs", "dp*mbs", "4*5 = 20"]),
        ({"ep": 3}, ["num_experts", "ep", "8 % 3"]),
        ({"zero": 3}, ["zero", "0, 1", "3"]),
        ({"vp": 2, "pp": 1}, ["vp", "pp"]),
        ({"recompute": "full/block", "recompute_layers": 40}, ["40", "32"]),
        ({"tp": 2, "sp": 0}, ["tp", "sequence"]),
    ],
)
def test_fixed_values_that_leave_nothing_are_named(pinned: dict[str, int | str], shown: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        dead_end(MIXTRAL, 8, 64, SearchSpace(pinned=pinned)).refuse()
    assert [part for part in shown if part not in caught.value.problem] == []
    assert Candidates(MIXTRAL, job(), 8, 64, SearchSpace(pinned=pinned)).count == 0


def test_experts_that_a_dense_model_has_not_are_named() -> None:
    with pytest.raises(UsageError) as caught:
        dead_end(LLAMA_70B, 8, 64, SearchSpace(pinned={"ep": 2})).refuse()
    assert mentions(caught.value.problem, "8 GPUs", "batch 64", "ep") and caught.value.hint


SIZES = ("tp", "pp", "vp", "cp", "ep", "etp", "dp", "mbs")
TEXTS = [f"{name}={size}" for name in SIZES for size in (1, 2, 3, 4, 5, 8)]
TEXTS += [f"zero={stage}" for stage in range(4)]
TEXTS += [f"sp={switch},tp={tp}" for switch in (0, 1) for tp in (1, 2)]
TEXTS += [f"recompute={kind}" for kind in ("none", "selective", "full/uniform2", "full/block")]
TEXTS += ["recompute_layers=2", "tp=2,ep=8,pp=2", "pp=4,vp=2,mbs=1"]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_fixed_value_is_blamed_only_where_nothing_is_left(model: ModelSpec) -> None:
    for text in TEXTS:
        space = SearchSpace(pinned=parse_values(text, what="--fix"))
        if Candidates(model, job(), 8, 64, space).count:
            assert dead_end(model, 8, 64, space).has_layouts(), text


def test_seven_samples_go_into_64_gpus_without_data_parallelism() -> None:
    assert dead_end(LLAMA_70B, 64, 7).has_layouts()
