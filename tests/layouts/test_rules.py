from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.layouts.specs import DEEPSEEK_V3, GPT_OSS, LLAMA_70B, LLAMA_405B, MIXTRAL, MODELS, job
from tests.mentions import mentions
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.layouts import rules
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.layout_batch import LayoutBatch, batch_of, layout_at, rows_like
from zenith_tune.layouts.rules import RULES, JobFacts, LayoutRule, broken_rules, implies, indivisible, legal

SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 32, 64]
ALONE = (
    *(rules.LAYERS, rules.EVEN_CHUNKS, rules.WHOLE_QUERY_GROUPS),
    *(rules.DOCUMENTED_EXPERT_TENSOR, rules.DOCUMENTED_WORLD),
)
"""Rules that the planner does not ask for."""


def random_layouts(seed: int, count: int = 4000) -> LayoutBatch:
    """Return layouts of which many break some rule and some hold each."""
    random = np.random.default_rng(seed)
    columns = {name: random.choice(SIZES, count) for name in ("tp", "pp", "cp", "ep", "dp", "mbs")}
    return LayoutBatch.of(
        **columns,
        vp=random.choice([1, 1, 2, 3, 4, 5], count),
        schedule=random.choice([0, 0, 0, 1, 2, 3, 4], count),
        etp=random.choice([1, 1, 2, 3, 8], count),
        gbs=random.choice([1, 7, 60, 96, 256, 512, 1024], count),
        zero=random.choice([0, 1, 2, 3], count),
        recompute=random.choice(4, count),
        recompute_layers=random.choice([0, 0, 1, 2, 5, 40, 126], count),
        sequence_parallel=random.choice([False, True], count),
        flash_attention=random.choice([False, True], count),
    )


@pytest.mark.parametrize("rule", [*RULES.values(), *ALONE], ids=lambda rule: rule.name)
def test_a_rule_says_the_same_of_a_batch_and_of_each_layout(rule: LayoutRule) -> None:
    batch = random_layouts(seed=len(rule.name), count=300)
    layouts = [layout_at(batch, i) for i in range(len(batch))]
    for model, framework in itertools.product(MODELS, ["megatron", "megatron-deepspeed", "deepspeed", "fsdp"]):
        facts = JobFacts.of(model, job(framework, seq_len=12_288))
        mask = np.broadcast_to(rule.holds(facts, batch), len(batch))
        alone = [rule.reason(facts, layout) is None for layout in layouts]
        assert mask.tolist() == alone, (model.name, framework)


def test_the_random_layouts_hold_and_break_every_rule_somewhere() -> None:
    batch, seen = random_layouts(seed=1), {}
    every = [JobFacts.of(model, job(framework)) for model in MODELS for framework in ("megatron", "deepspeed")]
    for name, rule in RULES.items():
        seen[name] = {bool(value) for facts in every for value in np.unique(rule.holds(facts, batch))}
    # The columns of a batch multiply to its ranks by definition.
    assert seen == {name: {True, False} if name != "world" else {True} for name in RULES}


def test_a_legal_layout_is_one_that_breaks_no_rule() -> None:
    model, at, batch = MODELS[0], job(), random_layouts(seed=2)
    alone = [not broken_rules(model, at, layout_at(batch, i)) for i in range(len(batch))]
    assert legal(RULES.values(), JobFacts.of(model, at), batch).tolist() == alone


def test_nothing_is_asked_of_what_is_not_known() -> None:
    unknown, layout = JobFacts(), Layout(num_gpus=56, tp=7, pp=2, ep=2, etp=2, global_batch=4, zero=2)
    broken = [name for name, rule in RULES.items() if rule.reason(unknown, layout) is not None]
    assert broken == ["zero_pipeline"]


def test_layouts_go_into_a_batch_and_come_back_the_same() -> None:
    batch = random_layouts(seed=3, count=100)
    layouts = [layout_at(batch, i) for i in range(len(batch))]
    again = batch_of(layouts)
    assert [layout_at(again, i) for i in range(len(again))] == layouts
    assert again.dp.tolist() == batch.dp.tolist()
    assert all(rows_like(batch, layout)[i] for i, layout in enumerate(layouts))
    assert not rows_like(batch, Layout(num_gpus=11, tp=11)).any()


def reason(rule: LayoutRule | str, model: ModelSpec = LLAMA_70B, framework: str = "megatron", **sizes: Any) -> str:
    layout = Layout(**{"num_gpus": 8, **sizes})
    rule = RULES[rule] if isinstance(rule, str) else rule
    return rule.reason(JobFacts.of(model, job(framework)), layout) or ""


@pytest.mark.parametrize(
    ("rule", "holds", "breaks", "values"),
    [
        ("world", {"tp": 4}, {"tp": 3}, "8 % (3*1*1 = 3)"),
        # Megatron says: world_size (8) is not divisible by expert_tensor_model_pipeline_parallel size (16)
        ("expert_world", {"ep": 8}, {"ep": 4, "etp": 4}, "8 % (4*4*1 = 16)"),
        (rules.DOCUMENTED_WORLD, {"tp": 4, "pp": 2}, {"tp": 4, "ep": 8}, "8 % (4*1*1*8*1 = 32)"),
        ("batch", {"global_batch": 16, "micro_batch": 2}, {"global_batch": 16, "micro_batch": 4}, "16 % (8*4 = 32)"),
        (
            rules.DOCUMENTED_BATCH,
            {"ep": 2, "global_batch": 16, "micro_batch": 4},
            {"ep": 2, "global_batch": 16, "micro_batch": 8},
            "16 % (4*8 = 32)",
        ),
        (rules.DOCUMENTED_EXPERT_TENSOR, {"tp": 2, "etp": 2}, {"tp": 2, "etp": 4}, "4 > 2"),
        ("heads", {"tp": 64}, {"tp": 3}, "64 % 3"),
        (rules.WHOLE_QUERY_GROUPS, {"tp": 8}, {"tp": 16}, "8 % 16"),
        ("query_groups", {"tp": 16}, {"tp": 6}, "8 and 6"),
        ("ffn", {"tp": 8}, {"tp": 5}, "28672 % 5"),
        (rules.LAYERS, {"pp": 4}, {"pp": 3}, "80 % 3"),
        (rules.EVEN_CHUNKS, {"pp": 3}, {"pp": 2, "vp": 3}, "80 % (2*3 = 6)"),
        ("interleaving", {"pp": 2, "vp": 2}, {"vp": 2}, "vp 2 and pp 1"),
        (
            "interleaved_batches",
            {"pp": 4, "vp": 2, "global_batch": 16},
            {"pp": 4, "vp": 2, "global_batch": 12},
            "6 % 4",
        ),
        ("context", {"cp": 4}, {"cp": 3}, "8192 % (2*3 = 6)"),
        ("sequence_parallel", {"tp": 2, "sequence_parallel": True}, {"sequence_parallel": True}, "tp 1"),
        ("sequence_chunks", {"tp": 3}, {"tp": 3, "sequence_parallel": True}, "8192 % (1*3 = 3)"),
        ("recompute_takes", {"recompute": "selective"}, {"recompute": "selective", "recompute_layers": 1}, "1"),
        (
            "recompute_chunk",
            {"pp": 4, "recompute": "full/block", "recompute_layers": 3},
            {"pp": 4, "recompute": "full/block", "recompute_layers": 21},
            "21 with 20",
        ),
        ("recompute_chunk", {"recompute": "none"}, {"recompute": "full/uniform"}, "0 with 80"),
        ("zero_pipeline", {"zero": 3}, {"zero": 2, "pp": 2}, "zero 2 and pp 2"),
        ("zero_stage", {"zero": 1}, {"zero": 2}, "0, 1 with megatron"),
    ],
)
def test_a_rule_holds_or_gives_the_values_that_break_it(
    rule: LayoutRule | str, holds: dict[str, Any], breaks: dict[str, Any], values: str
) -> None:
    assert reason(rule, **holds) == ""
    assert values in reason(rule, **breaks)


def test_405b_goes_into_sixteen_stages_with_embedding_and_loss_counted() -> None:
    plain = "megatron-deepspeed"
    for pp, vp in [(16, 1), (16, 4), (2, 9)]:
        assert not reason("pipeline", LLAMA_405B, plain, num_gpus=pp, pp=pp, vp=vp)
    assert reason("pipeline", LLAMA_405B, plain, num_gpus=16, pp=16, vp=8), "the first chunk would be empty"


def test_layers_that_go_neither_way_are_laid_out_where_a_layout_can_be_written() -> None:
    refused = reason("pipeline", DEEPSEEK_V3, "megatron-deepspeed", pp=2)
    assert mentions(refused, 61, 63, "2*1 = 2")
    for pp, vp in [(2, 1), (16, 1), (8, 4), (4, 4), (61, 1), (3, 20)]:
        assert not reason("pipeline", DEEPSEEK_V3, num_gpus=pp, pp=pp, vp=vp)
    assert "61 < 16*4 = 64" in reason("pipeline", DEEPSEEK_V3, num_gpus=16, pp=16, vp=4)
    assert mentions(reason("pipeline", DEEPSEEK_V3, vp=2), 61, 63)


def test_experts_are_cut_only_where_they_can_be() -> None:
    assert not reason("experts", MIXTRAL, ep=4)
    assert "8 % 3" in reason("experts", MIXTRAL, ep=3)
    for rule, size in [("experts", "ep"), ("expert_tensor", "etp")]:
        for count in (1, 2):
            sizes: dict[str, Any] = {size: count}
            assert mentions(reason(rule, **sizes), size, 1, count) == (count > 1)
    assert "2880 % 7" in reason("expert_tensor", GPT_OSS, etp=7)
    assert not reason("expert_bias", MIXTRAL, etp=2) and reason("expert_bias", GPT_OSS, etp=2)
    assert not reason("expert_sequence", MIXTRAL, tp=2, sequence_parallel=True)
    assert reason("expert_sequence", MIXTRAL, tp=2) and not reason("expert_sequence", tp=2)


def test_a_framework_cuts_and_recomputes_in_its_own_ways_alone() -> None:
    assert mentions(reason("framework", framework="deepspeed", tp=2), "tp", 1, "deepspeed", 2)
    assert mentions(reason("framework", framework="deepspeed", recompute="selective"), "selective", "deepspeed")
    assert not reason("framework", tp=2, recompute="selective")


def test_implication_is_false_only_for_a_broken_promise() -> None:
    assert not implies(True, False)
    assert implies(False, False)


def test_what_does_not_divide_is_named() -> None:
    assert indivisible("gbs", 16, "dp*mbs", 8, 4) == "gbs must be divisible by dp*mbs, but 16 % (8*4 = 32) != 0"
