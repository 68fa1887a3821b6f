"""The examples of pipeline."""

from __future__ import annotations

from zenith_tune.layouts.pipeline import is_accounted, is_laid_out, laid_out_chunks, layers_per_chunk


def test_an_accounted_split_counts_embedding_and_output() -> None:
    assert is_accounted(126, pp=16, vp=1)
    assert not is_accounted(80, pp=16, vp=1)


def test_a_laid_out_split_has_limits() -> None:
    assert is_laid_out(61, pp=16, vp=1)
    assert is_laid_out(61, pp=8, vp=4)
    assert not is_laid_out(61, pp=16, vp=4)


def test_a_laid_out_pipeline_has_shorter_ends() -> None:
    assert laid_out_chunks(61, pp=4, vp=2) == [7, 8, 8, 8, 8, 8, 8, 6]
    assert laid_out_chunks(9, pp=7, vp=1) == [1, 2, 2, 1, 1, 1, 1]


def test_the_fullest_chunk_has_as_many_layers_as_any() -> None:
    assert layers_per_chunk(126, pp=16, vp=1) == 8
    assert layers_per_chunk(80, pp=4, vp=5) == 4
    assert layers_per_chunk(61, pp=16, vp=1) == 4
