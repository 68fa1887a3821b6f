from __future__ import annotations

import numpy as np
import pytest

from zenith_tune.layouts.layout_batch import LayoutBatch
from zenith_tune.layouts.pipeline import is_laid_out, laid_out_chunks
from zenith_tune.layouts.schedules import micro_batches_in_flight
from zenith_tune.layouts.stages import (
    cost_stage_layers,
    even_stage_layers,
    layers_before_chunk,
    layers_before_cost_stage,
    layers_before_unit_chunk,
)

# Layers, hidden and feed-forward size of the models of the Ultra-Scale Playbook; its vocabulary has 131,072 words.
PLAYBOOK = [(16, 2048, 8192), (28, 3072, 8192), (32, 4096, 14336), (80, 8192, 28672)]


def dealt_one_by_one(num_layers: int, layer_cost: float, head_cost: float, pp: int) -> tuple[list[int], int]:
    """Deal blocks as nanotron's build_model does; return the layers of each stage, and the stages without any."""
    costs = [0.0] + [layer_cost] * num_layers + [0.0, head_cost, 0.0, 0.0]
    upto = np.cumsum(costs)
    stage, layers, blocks = 0, [0] * pp, [0] * pp
    for index, cost in enumerate(upto):
        blocks[stage] += 1
        layers[stage] += 1 <= index <= num_layers
        if cost > upto[-1] * ((stage + 1) / pp):
            stage += 1
    return layers, blocks.count(0)


def in_flight_by_schedule(pp: int, stage: int, m: int) -> int:
    """Run 1F1B and count the most micro-batches that are forward but not backward."""
    warm_up = min(pp - stage - 1, m)
    held = most = warm_up
    for _ in range(m - warm_up):
        held += 1
        most = max(most, held)
        held -= 1
    return most


@pytest.mark.parametrize(("num_layers", "hidden", "ffn"), PLAYBOOK)
@pytest.mark.parametrize("pp", [1, 2, 4, 8, 16, 32, 64, 128])
def test_layers_dealt_by_cost_are_those_dealt_one_by_one(num_layers: int, hidden: int, ffn: int, pp: int) -> None:
    layer_cost, head_cost = 4.0 * hidden**2 + 3.0 * hidden * ffn, 131072.0 * hidden
    layers, _ = dealt_one_by_one(num_layers, layer_cost, head_cost, pp)
    found = cost_stage_layers(float(num_layers), layer_cost, head_cost, float(pp), np.arange(float(pp)))
    assert found.tolist() == layers


@pytest.mark.parametrize("pp", [1, 2, 4, 8])
@pytest.mark.parametrize("m", [1, 3, 8, 20])
def test_micro_batches_in_flight_are_those_of_the_schedule(pp: int, m: int) -> None:
    batch = LayoutBatch.of(pp=[pp] * pp, gbs=m)
    found = micro_batches_in_flight(batch, np.arange(float(pp)))
    assert found.tolist() == [in_flight_by_schedule(pp, stage, m) for stage in range(pp)]


def test_interleaving_holds_megatrons_warm_up_chunks() -> None:
    # GPT-3 175B of Korthikanti et al. 2022: pp 8, vp 3; the first stage holds 1 + (p-1)/(p*v) times pp micro-batches.
    batch = LayoutBatch.of(pp=8, vp=3, gbs=64)
    assert micro_batches_in_flight(batch, np.zeros(1))[0] == pytest.approx(8 * (1 + 7 / 24))


def test_llama_405b_has_one_layer_fewer_at_both_ends() -> None:
    batch = LayoutBatch.of(pp=[16] * 3)
    assert even_stage_layers(126.0, batch, np.array([0.0, 7, 15])).tolist() == [7, 8, 7]


def test_stages_of_an_even_split_hold_all_layers() -> None:
    batch = LayoutBatch.of(pp=[4] * 4, vp=5)
    assert even_stage_layers(80.0, batch, np.arange(4.0)).sum() == 80


@pytest.mark.parametrize("num_layers", [7, 31, 61, 80, 94, 126])
def test_a_stage_has_the_layers_of_every_ppth_chunk(num_layers: int) -> None:
    shapes = [(pp, vp) for pp in range(2, num_layers + 1) for vp in range(1, num_layers // pp + 1)]
    for pp, vp in shapes:
        stages = even_stage_layers(float(num_layers), LayoutBatch.of(pp=[pp] * pp, vp=vp), np.arange(float(pp)))
        assert stages.sum() == num_layers, (pp, vp)
        if is_laid_out(num_layers, pp=pp, vp=vp):
            chunks = laid_out_chunks(num_layers, pp=pp, vp=vp)
            assert stages.tolist() == [sum(chunks[rank::pp]) for rank in range(pp)], (pp, vp)


def test_stages_of_many_models_are_those_of_each() -> None:
    models, pp, vp = np.array([61.0, 61, 94, 80, 126]), [16, 8, 16, 4, 16], [1, 4, 1, 5, 1]
    together = even_stage_layers(models, LayoutBatch.of(pp=pp, vp=vp), np.ones(5))
    alone = [
        even_stage_layers(float(layers), LayoutBatch.of(pp=[a], vp=b), np.ones(1))[0]
        for layers, a, b in zip(models, pp, vp, strict=True)
    ]
    assert together.tolist() == alone == [4, 8, 6, 20, 8]


def test_a_run_with_more_chunks_than_layers_counts_its_fullest_stage() -> None:
    assert even_stage_layers(61.0, LayoutBatch.of(pp=[16] * 2, vp=4), np.array([0.0, 15])).tolist() == [4, 4]


def test_an_uneven_split_has_shorter_ends() -> None:
    batch = LayoutBatch.of(pp=[4, 16, 16, 16])
    assert even_stage_layers(np.array([80.0, 126, 126, 61]), batch, np.array([0.0, 0, 1, 15])).tolist() == [
        20.0,
        7.0,
        8.0,
        2.0,
    ]


def test_the_layers_before_a_chunk_add_up() -> None:
    assert layers_before_chunk(61.0, LayoutBatch.of(pp=[4] * 4, vp=2), np.array([0.0, 1, 7, 8])).tolist() == [
        0.0,
        7.0,
        55.0,
        61.0,
    ]


def test_torchtitan_counts_embedding_and_output_as_layers() -> None:
    assert np.diff(layers_before_unit_chunk(32.0, LayoutBatch.of(pp=[4] * 5), np.arange(5.0))).tolist() == [
        8.0,
        9.0,
        8.0,
        7.0,
    ]


def test_nanotron_distributes_blocks_by_cost() -> None:
    assert cost_stage_layers(16.0, 1.0, 4.0, 4.0, np.arange(4.0)).tolist() == [6.0, 5.0, 5.0, 0.0]


def test_the_layers_before_a_cost_stage_add_up() -> None:
    assert layers_before_cost_stage(16.0, 1.0, 4.0, 4.0, np.arange(4.0)).tolist() == [0.0, 6.0, 11.0, 16.0]
