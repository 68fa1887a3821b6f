from __future__ import annotations

import numpy as np
import pytest

from zenith_tune.layouts.pipeline import (
    is_accounted,
    is_even,
    is_laid_out,
    laid_out_chunks,
    layers_per_chunk,
)

# Layers of DeepSeek-V3 and Kimi-K2, Llama-3 70B, Qwen3-235B and Llama-3 405B, and small and odd ones.
LAYERS = [1, 2, 3, 5, 7, 16, 24, 31, 61, 80, 94, 126]
SHAPES = [(pp, vp) for pp in range(1, 67) for vp in range(1, 67) if pp * vp <= 160]


@pytest.mark.parametrize("num_layers", LAYERS)
def test_a_laid_out_pipeline_has_every_layer_once_and_one_in_each_chunk(num_layers: int) -> None:
    for pp, vp in SHAPES:
        if is_laid_out(num_layers, pp=pp, vp=vp):
            chunks = laid_out_chunks(num_layers, pp=pp, vp=vp)
            assert (len(chunks), sum(chunks)) == (pp * vp, num_layers), (pp, vp)
            assert min(chunks) >= 1, (pp, vp)


@pytest.mark.parametrize("num_layers", LAYERS)
def test_units_of_a_laid_out_pipeline_differ_by_one_at_most(num_layers: int) -> None:
    for pp, vp in SHAPES:
        if is_laid_out(num_layers, pp=pp, vp=vp):
            units = laid_out_chunks(num_layers, pp=pp, vp=vp)
            units[0], units[-1] = units[0] + 1, units[-1] + 1
            assert {*units} == {min(units), min(units) + 1}, (pp, vp)


@pytest.mark.parametrize("num_layers", LAYERS)
def test_pipelines_are_split_in_one_way_or_have_more_chunks_than_layers(num_layers: int) -> None:
    for pp, vp in SHAPES:
        ways = [split(num_layers, pp=pp, vp=vp) for split in (is_even, is_accounted, is_laid_out)]
        assert sum(ways) <= 1
        if pp > 1:
            assert any(ways) == (num_layers >= pp * vp), (pp, vp)


@pytest.mark.parametrize("num_layers", LAYERS)
def test_many_shapes_are_laid_out_as_each_is(num_layers: int) -> None:
    pp, vp = np.array(SHAPES, np.int32).T
    alone = [is_laid_out(num_layers, pp=a, vp=b) for a, b in SHAPES]
    assert is_laid_out(num_layers, pp=pp, vp=vp).tolist() == alone
    layers = [layers_per_chunk(num_layers, pp=a, vp=b) for a, b in SHAPES]
    assert layers_per_chunk(num_layers, pp=pp, vp=vp).tolist() == layers


@pytest.mark.parametrize("num_layers", LAYERS)
def test_the_fullest_chunk_is_that_of_the_split(num_layers: int) -> None:
    for pp, vp in SHAPES:
        if is_laid_out(num_layers, pp=pp, vp=vp):
            assert layers_per_chunk(num_layers, pp=pp, vp=vp) == max(laid_out_chunks(num_layers, pp=pp, vp=vp))
        elif is_accounted(num_layers, pp=pp, vp=vp):
            assert layers_per_chunk(num_layers, pp=pp, vp=vp) == (num_layers + 2) // (pp * vp)


@pytest.mark.parametrize(
    ("pp", "vp", "chunks"),
    [
        (16, 1, [3, *[4] * 14, 2]),
        (4, 4, [3, *[4] * 14, 2]),
        (8, 4, [1, *[2] * 29, 1, 1]),
        (2, 1, [31, 30]),
    ],
)
def test_the_61_layers_of_deepseek_v3_go_into_the_usual_pipelines(pp: int, vp: int, chunks: list[int]) -> None:
    assert is_laid_out(61, pp=pp, vp=vp)
    assert laid_out_chunks(61, pp=pp, vp=vp) == chunks
    assert layers_per_chunk(61, pp=pp, vp=vp) == max(chunks)


def test_ends_have_no_larger_chunk_while_one_between_them_can_take_it() -> None:
    assert laid_out_chunks(94, pp=5, vp=1) == [18, 20, 19, 19, 18]
    assert laid_out_chunks(95, pp=6, vp=1) == [15, 17, 16, 16, 16, 15]
