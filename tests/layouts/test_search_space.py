from __future__ import annotations

from dataclasses import replace

import pytest

from zenith_tune.errors import UsageError
from zenith_tune.layouts.search_space import SearchSpace, limits_of

WHAT = "vp above 8"


def test_chunks_that_are_not_laid_out_are_named_where_they_could_be() -> None:
    space = SearchSpace()
    assert any(WHAT in reason for reason in space.left_out(has_experts=False, layout_strings=True))
    assert not any(WHAT in reason for reason in space.left_out(has_experts=False))
    for narrow in (replace(space, pinned={"vp": 9}), replace(space, uneven_splits=False)):
        assert not any(WHAT in reason for reason in narrow.left_out(has_experts=False, layout_strings=True))


def test_the_widest_space_leaves_out_less() -> None:
    narrow, wide = (SearchSpace.named(name).left_out(has_experts=True) for name in ("default", "all"))
    assert {*wide} < {*narrow}


def test_an_unknown_space_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'default'.*all, default"):
        SearchSpace.named("defualt")


def test_laid_out_pipelines_are_tried_up_to_eight_chunks_or_by_powers() -> None:
    assert [vp for vp in range(1, 40) if SearchSpace().tries_laid_out(vp)] == [1, 2, 3, 4, 5, 6, 7, 8, 16, 32]


def test_tensor_parallelism_stays_within_a_domain() -> None:
    assert SearchSpace().tensor_within(8).max_tp == 8
    assert SearchSpace(max_tp=4).tensor_within(8).max_tp == 4


def test_an_unknown_framework_is_limited_like_megatron() -> None:
    assert limits_of("deepspeed").sizes == ()
    assert limits_of("nanotron").zero_stages == (0, 1)
