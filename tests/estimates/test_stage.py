from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.estimates.memory_cases import llama, workload
from zenith_tune.describe.framework_spec import OwnPipeline, load_framework
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.estimates.stage import Stage, first_moe_rank, stage_loads
from zenith_tune.layouts.layout_batch import LayoutBatch
from zenith_tune.layouts.pipeline import is_even, laid_out_chunks


def stages(model: ModelSpec, framework: str, pp: int, vp: int = 1) -> list[tuple[float, float]]:
    """Return the dense layers and those with experts of every rank."""
    batch = LayoutBatch.of(pp=[pp] * pp, vp=vp, gbs=pp)
    found = Stage.of(workload(model, framework), batch, load_framework(framework), np.arange(float(pp)))
    return list(zip(found.dense_layers.tolist(), found.moe_layers.tolist(), strict=True))


def counted_one_by_one(model: ModelSpec, pp: int, vp: int) -> list[tuple[float, float]]:
    """Deal the layers to the ranks one after another and count them."""
    even = is_even(model.num_layers, pp=pp, vp=vp)
    per_chunk = [model.num_layers // (pp * vp)] * (pp * vp) if even else laid_out_chunks(model.num_layers, pp=pp, vp=vp)
    owners = [chunk % pp for chunk, size in enumerate(per_chunk) for _ in range(size)]
    dense, rest = owners[: model.num_dense_layers], owners[model.num_dense_layers :]
    return [(dense.count(rank), rest.count(rank)) for rank in range(pp)]


def with_experts(num_layers: int, num_dense_layers: int) -> ModelSpec:
    return llama(num_layers=num_layers, num_dense_layers=num_dense_layers, num_experts=8, top_k=2, moe_ffn_hidden=512)


@pytest.mark.parametrize(("pp", "vp"), [(16, 2), (8, 4), (32, 1), (61, 1)])
def test_the_first_ranks_of_deepseek_v3_have_the_dense_layers_of_their_chunks(pp: int, vp: int) -> None:
    first_two = {(16, 2): [(1, 2), (2, 2)], (8, 4): [(1, 6), (2, 6)], (32, 1): [(1, 0), (2, 0)]}
    found = stages(load_model("deepseek-v3"), "megatron", pp, vp)
    assert found[:2] == first_two.get((pp, vp), [(1, 0), (1, 0)])


@pytest.mark.parametrize("num_layers", [7, 32, 61, 94])
@pytest.mark.parametrize("num_dense", [0, 1, 3, 5])
def test_every_rank_has_the_dense_layers_that_are_dealt_to_it(num_layers: int, num_dense: int) -> None:
    model = with_experts(num_layers, num_dense)
    for pp in range(2, num_layers + 1):
        for vp in range(1, num_layers // pp + 1):
            assert stages(model, "megatron", pp, vp) == counted_one_by_one(model, pp, vp), (pp, vp)


def test_dense_layers_dealt_by_cost_come_first() -> None:
    found = stages(with_experts(16, 5), "nanotron", 4)
    assert sum(dense for dense, _ in found) == 5 and sum(dense + moe for dense, moe in found) == 16
    assert all(later == 0 or moe == 0 for (_, moe), (later, _) in itertools.pairwise(found))


def test_many_models_at_once_have_the_dense_layers_of_each() -> None:
    models = [llama(num_layers=32), with_experts(32, 0), with_experts(32, 3)]
    rows = [workload(model, "megatron") for model in models]
    batch, spec = LayoutBatch.of(pp=[8] * 3, vp=2, gbs=8), load_framework("megatron")
    together = Stage.of(type(rows[0]).stack(rows), batch, spec, np.ones(3))
    assert together.dense_layers.tolist() == [stages(model, "megatron", 8, 2)[1][0] for model in models] == [4, 0, 1]


@pytest.mark.parametrize(("pp", "vp", "rank"), [(32, 1, 2), (16, 2, 2), (8, 1, 1), (1, 1, 0), (2, 1, 1)])
def test_the_first_rank_of_deepseek_v3_whose_first_chunk_has_experts_alone(pp: int, vp: int, rank: int) -> None:
    at, spec = workload(load_model("deepseek-v3"), "megatron"), load_framework("megatron")
    assert first_moe_rank(at, LayoutBatch.of(pp=[pp], vp=vp), spec).tolist() == [rank]


def test_stages_that_a_job_writes_down_are_estimated_as_written() -> None:
    # DeepSeek-V3: 3 dense layers on the first rank, and the layer for multi-token prediction on a stage of its own.
    layers = (3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 6, 4, 0)
    own = OwnPipeline(num_ranks=16, layers=layers, mtp_layers=(*[0] * 14, 1, 0))
    spec, at = replace(load_framework("megatron"), own_pipeline=own), workload(load_model("deepseek-v3"), "megatron")
    batch, ranks = LayoutBatch.of(pp=[16] * 16), np.arange(16.0)
    stage = Stage.of(at, batch, spec, ranks)
    assert stage.layers.tolist() == list(layers)
    assert stage.dense_layers.tolist() == [3, *[0] * 15]
    assert stage.mtp_layers.tolist() == [*[0] * 14, 1, 0]
    loads = stage_loads(at, batch.take(np.array([0])), spec)
    assert (loads.fullest.tolist(), loads.last.tolist()) == ([6], [0])
    # Any other pipeline is split as ever.
    other = LayoutBatch.of(pp=[8] * 8)
    plain = Stage.of(at, other, replace(spec, own_pipeline=None), np.arange(8.0))
    assert Stage.of(at, other, spec, np.arange(8.0)).layers.tolist() == plain.layers.tolist()
