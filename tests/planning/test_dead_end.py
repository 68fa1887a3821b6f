from __future__ import annotations

from dataclasses import replace

import pytest

from tests.layouts.specs import LLAMA_70B, MIXTRAL, MODELS, job
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.layouts.candidates import Candidates
from zenith_tune.layouts.search_space import SearchSpace
from zenith_tune.planning.dead_end import DeadEnd


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
    message = str(dead_end(LLAMA_70B, 127, 7).error())
    assert "nearest are batch 127 on 127 GPUs and 126 GPUs with batch 7" in message
    assert dead_end(LLAMA_70B, 127, 127).has_layouts() and dead_end(LLAMA_70B, 126, 7).has_layouts()


def test_what_is_nearest_is_what_the_framework_can_cut() -> None:
    legacy = replace(dead_end(LLAMA_70B, 127, 7), job=job("megatron-deepspeed"))
    assert "and 128 GPUs with batch 7" in str(legacy.error())
    assert not replace(legacy, num_gpus=126).has_layouts()


@pytest.mark.parametrize(
    ("pinned", "reason"),
    [
        ({"tp": 16}, "the fixed sizes do not divide 8 GPUs"),
        ({"dp": 3}, "the fixed sizes do not divide 8 GPUs"),
        ({"mbs": 5}, "the fixed values leave no micro-batch for dp 1"),
        ({"ep": 16}, "the fixed sizes do not divide 8 GPUs"),
    ],
)
def test_fixed_values_that_leave_nothing_are_named(pinned: dict[str, int | str], reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        dead_end(MIXTRAL, 8, 64, SearchSpace(pinned=pinned)).refuse()
    assert reason in str(caught.value)


def test_seven_samples_go_into_64_gpus_without_data_parallelism() -> None:
    assert dead_end(LLAMA_70B, 64, 7).has_layouts()
