from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.layouts.specs import DEEPSEEK_V3, LLAMA_70B, LLAMA_405B, MIXTRAL, MODELS, job
from tests.mentions import mentions
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.layouts.candidates import PIECE, Candidates, Choices
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.layout_batch import layout_at
from zenith_tune.layouts.pipeline import is_laid_out, layers_per_chunk
from zenith_tune.layouts.rules import RULES, WORLD, JobFacts, first_reason, legal
from zenith_tune.layouts.search_space import SearchSpace

SMALL = ModelSpec(
    name="small", num_layers=6, hidden=96, ffn_hidden=288, num_heads=12, num_kv_heads=6, head_dim=8, vocab=1000
)
SMALL_UNEVEN = replace(SMALL, name="small-uneven", num_layers=7)
SMALL_EXPERTS = ModelSpec(
    name="small-moe",
    num_layers=6,
    hidden=96,
    ffn_hidden=0,
    num_heads=12,
    num_kv_heads=6,
    head_dim=8,
    vocab=1000,
    num_experts=6,
    top_k=2,
    moe_ffn_hidden=96,
)


def layouts(candidates: Candidates) -> list[Layout]:
    return [layout_at(batch, i) for batch in candidates.batches() for i in range(len(batch))]


def brute_force(num_gpus: int, global_batch: int, num_layers: int) -> Iterator[Layout]:
    """Yield the whole product, legal or not, of what the widest space may hold for so many layers."""
    up_to = range(1, num_gpus + 1)
    recompute = [("none", 0), ("selective", 0), ("full/uniform", 1), *(("full/block", n) for n in range(1, num_layers))]
    for tp, pp, cp, ep, etp in itertools.product(up_to, repeat=5):
        if num_gpus % (tp * pp * cp) or num_gpus % (etp * ep * pp):
            continue
        for vp, mbs, zero, sp, flash, (kind, number) in itertools.product(
            range(1, num_layers + 1), range(1, global_batch + 1), (0, 1), (False, True), (False, True), recompute
        ):
            yield Layout(
                num_gpus=num_gpus, tp=tp, pp=pp, vp=vp, cp=cp, ep=ep, etp=etp, micro_batch=mbs,
                global_batch=global_batch, zero=zero, sequence_parallel=sp, flash_attention=flash,
                recompute=kind, recompute_layers=number,
            )  # fmt: skip


def is_new(model: ModelSpec, layout: Layout) -> bool:
    """Tell whether a layout is not another one under a second name."""
    chunk = layers_per_chunk(model.num_layers, pp=layout.pp, vp=layout.vp)
    whole_block = layout.recompute == "full/block" and layout.recompute_layers >= chunk
    shards = layout.dp * layout.cp > 1 or (layout.edp > 1 and model.num_experts > 0)
    return not whole_block and (shards or layout.zero == 0)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "size"), [(SMALL, 6), (SMALL_UNEVEN, 4), (SMALL_EXPERTS, 6)])
def test_the_widest_space_is_the_whole_product_less_what_breaks_a_rule(model: ModelSpec, size: int) -> None:
    at = job(seq_len=96)
    found = layouts(Candidates(model, at, size, size, SearchSpace.named("all")))
    product = brute_force(size, size, model.num_layers)
    rules, facts = (WORLD, *RULES.values()), JobFacts.of(model, at)
    expected = {layout for layout in product if first_reason(rules, facts, layout) is None and is_new(model, layout)}
    assert len(found) == len(set(found))
    assert set(found) == expected


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("space", ["default", "all"])
@pytest.mark.parametrize(("num_gpus", "global_batch"), [(64, 512), (60, 510), (48, 96)])
def test_no_candidate_breaks_a_rule(model: ModelSpec, space: str, num_gpus: int, global_batch: int) -> None:
    candidates = Candidates(model, job(), num_gpus, global_batch, SearchSpace.named(space, max_sizes={"tp": 8}))
    num_layouts = 0
    for batch in candidates.batches():
        assert legal(RULES.values(), JobFacts.of(model, job()), batch).all()
        assert (batch.num_gpus == num_gpus).all() and (batch.gbs == global_batch).all()
        num_layouts += len(batch)
    assert num_layouts > 0


@pytest.mark.slow
def test_the_default_space_is_part_of_the_widest() -> None:
    wide = set(layouts(Candidates(SMALL_EXPERTS, job(seq_len=96), 12, 12, SearchSpace.named("all"))))
    narrow = layouts(Candidates(SMALL_EXPERTS, job(seq_len=96), 12, 12))
    assert narrow and set(narrow) < wide


@pytest.mark.parametrize(
    ("model", "num_gpus", "global_batch", "most"),
    [(LLAMA_70B, 64, 512, 300_000), (LLAMA_405B, 16_384, 2048, 1_500_000)],
)
def test_the_spaces_of_the_large_llamas_stay_small_and_come_in_pieces(
    model: ModelSpec, num_gpus: int, global_batch: int, most: int
) -> None:
    sizes = [
        len(batch) for batch in Candidates(model, job(), num_gpus, global_batch, SearchSpace.named("all")).batches()
    ]
    assert PIECE < sum(sizes) <= most
    assert max(sizes) < 2 * PIECE


def test_sizes_that_are_no_powers_of_two_are_tried() -> None:
    found = layouts(Candidates(SMALL, job(seq_len=96), 36, 36))
    assert {layout.tp for layout in found} == {1, 2, 3, 6, 12}
    assert {layout.pp for layout in found} == {1, 2, 3, 4, 6}, "4 by embedding and loss counted: 8 / 4"


def test_the_405b_of_the_paper_is_a_candidate() -> None:
    pinned = {"tp": 8, "pp": 16, "cp": 1, "mbs": 1}
    found = layouts(Candidates(LLAMA_405B, job(), 16_384, 2048, SearchSpace(pinned=pinned)))
    assert {layout.dp for layout in found} == {128}


@pytest.mark.parametrize(("pp", "vp"), [(16, 1), (8, 4), (4, 4)])
def test_the_pipelines_of_deepseek_v3_are_candidates_where_they_can_be_laid_out(pp: int, vp: int) -> None:
    space = SearchSpace(pinned={"tp": 1, "pp": pp, "vp": vp, "cp": 1, "ep": 64, "mbs": 1})
    assert Candidates(DEEPSEEK_V3, job(), 2048, 8192, space).count > 0
    assert Candidates(DEEPSEEK_V3, job("megatron-deepspeed"), 2048, 8192, space).count == 0


def test_many_chunks_per_rank_are_laid_out_only_in_powers_of_two() -> None:
    found = Candidates(DEEPSEEK_V3, job(), 64, 512, SearchSpace(pinned={"pp": 2})).grids
    assert {int(vp) for vp in found["vp"]} == {1, 2, 3, 4, 5, 6, 7, 8, 16}
    assert is_laid_out(61, pp=2, vp=9)
    fixed = Candidates(DEEPSEEK_V3, job(), 64, 512, SearchSpace(pinned={"pp": 2, "vp": 9}))
    assert fixed.count > 0, "a value that is given is tried"


def test_pinned_values_hold() -> None:
    pinned: dict[str, int | str] = {
        "tp": 2,
        "dp": 4,
        "zero": 0,
        "recompute": "full/block",
        "recompute_layers": 3,
        "sp": 0,
    }
    found = layouts(Candidates(LLAMA_70B, job(), 64, 512, SearchSpace(pinned=pinned)))
    assert found
    for layout in found:
        assert (layout.tp, layout.dp, layout.zero, layout.sequence_parallel) == (2, 4, 0, False)
        assert (layout.recompute, layout.recompute_layers) == ("full/block", 3)


def test_experts_lie_over_the_same_ranks_as_the_dense_layers() -> None:
    found = layouts(Candidates(MIXTRAL, job(), 8, 64))
    assert any(layout.tp * layout.ep > 8 for layout in found), "folding: tp4 ep8 on 8 GPUs"
    assert all(layout.sequence_parallel for layout in found if layout.tp > 1)


@pytest.mark.parametrize(
    ("framework", "stages"), [("megatron", {0, 1}), ("deepspeed", {0, 1, 2, 3}), ("fsdp", {0, 2, 3})]
)
def test_stages_of_sharding_are_those_of_the_framework(framework: str, stages: set[int]) -> None:
    found = layouts(Candidates(LLAMA_70B, job(framework), 8, 64, SearchSpace.named("all")))
    assert {layout.zero for layout in found} == stages
    assert all(layout.pp == 1 for layout in found if layout.zero > 1)


def test_what_a_rule_cuts_off_is_counted_with_an_example() -> None:
    cuts = {cut.rule: cut for cut in Candidates(LLAMA_70B, job(), 60, 510).cuts}
    assert mentions(cuts["heads"].example, "num_attention_heads", "tp", 64, 3)
    assert mentions(cuts["batch"].problem, "gbs", "dp*mbs")
    assert all(cut.count > 0 for cut in cuts.values())


def test_layouts_that_only_the_batch_forbids_come_with_the_next_batch_that_allows_them() -> None:
    near = list(Candidates(LLAMA_70B, job(), 64, 500).near_batches())
    assert near
    for batch in near:
        assert legal(RULES.values(), JobFacts.of(LLAMA_70B, job()), batch).all()
        assert (batch.gbs > 500).all() and (batch.gbs <= 625).all()
    assert 512 in np.concatenate([batch.gbs for batch in near])


def test_choices_are_expanded_by_key() -> None:
    choices = Choices({1: [(7,)], 2: [(8,), (9,)]})
    rows, options = choices.expand(np.array([2, 1]))
    assert rows.tolist() == [0, 0, 1]
    assert options[:, 0].tolist() == [8, 9, 7]
