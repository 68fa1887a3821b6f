from __future__ import annotations

import numpy as np
import pytest

from tests.layouts.specs import MODELS, job
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.layouts.batch_constraints import BATCH_RULES, legal
from zenith_tune.layouts.layout_batch import LayoutBatch, batch_of, layout_at
from zenith_tune.layouts.layout_rules import RULES, broken_rules
from zenith_tune.layouts.pipeline import chunk_layers, layers_per_chunk

SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 32, 64]


def random_layouts(seed: int, count: int = 4000) -> LayoutBatch:
    """Return layouts of which many break some rule and some hold each."""
    random = np.random.default_rng(seed)
    columns = {name: random.choice(SIZES, count) for name in ("tp", "pp", "cp", "ep", "dp", "mbs")}
    return LayoutBatch.of(
        **columns,
        vp=random.choice([1, 1, 2, 3, 4, 5], count),
        etp=random.choice([1, 1, 2, 3, 8], count),
        gbs=random.choice([1, 7, 60, 96, 256, 512, 1024], count),
        zero=random.choice([0, 1, 2, 3], count),
        recompute=random.choice(4, count),
        recompute_layers=random.choice([0, 0, 1, 2, 5, 40, 126], count),
        sequence_parallel=random.choice([False, True], count),
        flash_attention=random.choice([False, True], count),
    )


def test_every_rule_but_the_dense_world_has_its_mask() -> None:
    assert [*RULES] == ["world", *BATCH_RULES]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("framework", ["megatron", "megatron-deepspeed", "deepspeed", "fsdp"])
@pytest.mark.parametrize("rule", BATCH_RULES)
def test_a_mask_says_of_each_layout_what_the_rule_says(model: ModelSpec, framework: str, rule: str) -> None:
    at, batch = job(framework, seq_len=12_288), random_layouts(seed=len(rule), count=600)
    mask = BATCH_RULES[rule](model, at, batch)
    alone = [RULES[rule].explain(model, at, layout_at(batch, i)) is None for i in range(len(batch))]
    assert mask.tolist() == alone


def test_the_random_layouts_hold_and_break_every_rule_somewhere() -> None:
    batch, seen = random_layouts(seed=1), {}
    for rule, holds in BATCH_RULES.items():
        masks = [holds(model, job(framework), batch) for model in MODELS for framework in ("megatron", "deepspeed")]
        seen[rule] = {bool(value) for mask in masks for value in np.unique(mask)}
    assert seen == {rule: {True, False} for rule in BATCH_RULES}


def test_a_legal_layout_is_one_that_breaks_no_rule() -> None:
    model, at, batch = MODELS[0], job(), random_layouts(seed=2)
    alone = [not broken_rules(model, at, layout_at(batch, i)) for i in range(len(batch))]
    assert legal(model, at, batch).tolist() == alone


def test_layouts_go_into_a_batch_and_come_back_the_same() -> None:
    batch = random_layouts(seed=3, count=100)
    layouts = [layout_at(batch, i) for i in range(len(batch))]
    again = batch_of(layouts)
    assert [layout_at(again, i) for i in range(len(again))] == layouts
    assert again.dp.tolist() == batch.dp.tolist()


@pytest.mark.parametrize("num_layers", [24, 61, 80, 94, 126])
def test_chunks_of_many_layouts_are_as_long_as_those_of_each(num_layers: int) -> None:
    batch = random_layouts(seed=4)
    alone = [layers_per_chunk(num_layers, pp=int(pp), vp=int(vp)) for pp, vp in zip(batch.pp, batch.vp, strict=True)]
    assert chunk_layers(num_layers, batch.pp, batch.vp).tolist() == alone
