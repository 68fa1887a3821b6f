from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest

from tests.mentions import mentions
from tests.presets.megatron.test_commands import LLAMA3_8B, MIXTRAL, ONE_H200, read
from tests.thoroughness import few_quick
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.layouts.axes import Axes
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.rules import RULES, broken_rules
from zenith_tune.layouts.search_space import SearchSpace
from zenith_tune.presets.megatron.space import STAGES, MegatronLmSpace, SearchLimits, search_names
from zenith_tune.study.parameters import Params

TINY = "--num-layers 6 --hidden-size 64 --num-attention-heads 8 --seq-length 128 --vocab-size 1000 --bf16"


def space(
    command: str, search: str = "default", *, tp_max: int = 64, mbs_max: int = 16, **given: int
) -> MegatronLmSpace:
    return MegatronLmSpace(read(command, **given), SearchLimits(search=search, tp_max=tp_max, mbs_max=mbs_max))


def tiny(options: str = "", n_gpus: int = 6, gbs: int = 12) -> str:
    return f"torchrun --nproc-per-node {n_gpus} pretrain_gpt.py {TINY} --global-batch-size {gbs} {options}"


def product(found: MegatronLmSpace) -> Iterator[Params]:
    return (dict(zip(found.choices, values, strict=True)) for values in itertools.product(*found.choices.values()))


def test_sizes_are_divisors_of_the_gpus_that_the_model_allows() -> None:
    choices = space(tiny(n_gpus=12, gbs=24)).choices
    assert choices == {
        "tp": (1, 2, 4),  # 8 heads forbid 3, 6 and 12
        "pp": (1, 2, 3, 4, 6),
        "vp": (1, 2, 3),
        "cp": (1,),
        "ep": (1,),
        "etp": (1,),
        "zero": (0, 1),
        "mbs": (1, 2, 3, 4, 6, 8, 12),
        "recompute": ("none", "selective", "full/uniform1", "full/block1", "full/block3"),
    }


def test_experts_have_sizes_of_their_own() -> None:
    choices = space(MIXTRAL).choices
    assert choices["ep"] == (1, 2, 4, 8)
    assert choices["etp"] == (1, 2, 4, 8, 16, 32, 64)
    assert space(LLAMA3_8B, "ep+etp+mbs").choices["ep"] == (1,)


def test_context_parallelism_is_searched_where_sequences_are_long_or_the_command_has_it() -> None:
    assert space(tiny()).choices["cp"] == (1,)
    assert space(tiny("--seq-length 32768", n_gpus=4)).choices["cp"] == (1, 2, 4)
    assert space(tiny("--context-parallel-size 2", n_gpus=4)).choices["cp"] == (1, 2, 4)
    # Each rank takes a chunk from both ends, so that 2*cp must divide the sequence.
    assert space(tiny("--seq-length 132", n_gpus=4), "cp").choices["cp"] == (1, 2)
    assert space(tiny("--seq-length 32768 --transformer-impl local", n_gpus=4)).choices["cp"] == (1,)


def test_what_is_not_searched_stays_as_it_is_in_the_command() -> None:
    found = space(MIXTRAL, "mbs")
    assert found.choices == {
        "tp": (1,),
        "pp": (4,),
        "vp": (2,),
        "cp": (1,),
        "ep": (8,),
        "etp": (1,),
        "mbs": (1, 2, 4, 8, 16),
        "recompute": ("selective",),
        "routing": ("balanced",),
    }
    assert found.open_names == ["mbs"]


def test_limits_bound_the_search() -> None:
    choices = space(LLAMA3_8B, tp_max=4, mbs_max=2).choices
    assert (choices["tp"], choices["mbs"]) == ((1, 2, 4), (1, 2))


@pytest.mark.parametrize("search", ["default+zero", "default,zero", " Default : zero "])
def test_axes_are_parted_by_a_plus_a_comma_or_a_colon(search: str) -> None:
    assert space(LLAMA3_8B, search).choices["zero"] == (0, 1)


def test_an_unknown_axis_is_guessed_and_an_empty_search_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"search 'tpp'.*'tp'"):
        space(LLAMA3_8B, "tpp")
    with pytest.raises(UsageError, match=r"search=tp\+pp\+mbs"):
        space(LLAMA3_8B, " + ")


COMMANDS = {
    "dense": (tiny(), "default"),
    "sizes of its own": (
        tiny(
            "--tensor-model-parallel-size 2 --context-parallel-size 2 --pipeline-model-parallel-size 2", n_gpus=8, gbs=8
        ),
        "default",
    ),
    "uneven layers": (tiny("--num-layers 7", n_gpus=8, gbs=8), "default"),
    "all axes": (tiny("--use-distributed-optimizer", n_gpus=4, gbs=8), "default+cp+zero+sequence_parallel"),
    "sharded at best": (tiny("--tensor-model-parallel-size 2 --seq-length 129", n_gpus=8, gbs=8), "default"),
    "experts": (tiny("--num-experts 4 --moe-ffn-hidden-size 48 --disable-bias-linear", n_gpus=4, gbs=4), "default"),
    "every etp": (tiny("--num-experts 4 --disable-bias-linear", n_gpus=4, gbs=4), "tp+pp+ep+etp+recompute"),
    "experts with a bias": (tiny("--num-experts 4", n_gpus=4, gbs=4), "default"),
    "own split": (
        tiny("--num-layers 7 --pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 4", n_gpus=4, gbs=8),
        "default",
    ),
    "switches": (
        tiny("--cuda-graph-impl local --no-overlap-p2p-communication --defer-embedding-wgrad-compute", n_gpus=8, gbs=8),
        "default",
    ),
    "overlap of experts": (
        tiny("--num-experts 4 --disable-bias-linear --overlap-moe-expert-parallel-comm", n_gpus=4, gbs=8),
        "default",
    ),
    "without transformer engine": (tiny("--transformer-impl local --no-persist-layer-norm", n_gpus=4), "default+cp"),
}


@pytest.mark.parametrize("name", few_quick(COMMANDS, 6))
def test_points_are_exactly_those_of_the_space_that_no_rule_forbids(name: str) -> None:
    command, search = COMMANDS[name]
    found = space(command, search, mbs_max=4)
    legal = [point for point in product(found) if found.explain(point) is None]
    points = list(found.points())
    assert len(points) == len(legal) > 0
    assert {tuple(point.items()) for point in points} == {tuple(point.items()) for point in legal}
    assert all(list(point) == list(found.choices) for point in points)


@pytest.mark.parametrize("command", [LLAMA3_8B, MIXTRAL, ONE_H200])
def test_every_point_holds_the_planners_rules(command: str) -> None:
    found = space(command)
    job = found.job
    assert job.model is not None
    for point in itertools.islice(found.points(), 0, None, 7):
        layout = found.layout(point)
        assert broken_rules(job.model, job.job, layout) == []
        assert layout.num_micro_batches * layout.micro_batch * layout.dp == layout.global_batch


def test_every_rule_of_the_planner_is_looked_at_once_the_values_it_needs_are_chosen() -> None:
    assert {rule for rules in STAGES.values() for rule in rules} == set(RULES)


@pytest.mark.parametrize(
    ("model", "n_nodes", "options", "at_least"),
    [("llama3-70b", 8, "--seq-length 8192", 1_000), ("deepseek-v3", 128, "--seq-length 4096", 20_000)],
)
def test_points_of_many_gpus_are_quickly_found(model: str, n_nodes: int, options: str, at_least: int) -> None:
    command = (
        f"torchrun --nproc-per-node 8 --nnodes {n_nodes} pretrain_gpt.py {options} --bf16 --global-batch-size 1024"
    )
    found = MegatronLmSpace(read(command, model=model), SearchLimits(tp_max=64, mbs_max=16))
    start = time.process_time()
    number = sum(1 for _ in found.points())
    assert number > at_least
    assert time.process_time() - start < 40  # well under 1 s where nothing else runs


PLAIN: Params = {"tp": 1, "pp": 1, "vp": 1, "cp": 1, "ep": 1, "etp": 1, "mbs": 1, "recompute": "none"}


@pytest.mark.parametrize(
    ("command", "change", "named"),
    [
        (LLAMA3_8B, {"tp": 4, "pp": 4}, ("n_gpus", "tp*pp*cp", 8, 16)),
        (LLAMA3_8B, {"mbs": 32}, ("gbs", "dp*mbs", 128, 256)),
        (
            LLAMA3_8B,
            {"pp": 8, "vp": 5},
            ("num_layers", "pp*vp", 32, 40),
        ),
        (LLAMA3_8B, {"vp": 2}, ("vp 2", "pp 1")),
        (
            LLAMA3_8B,
            {"pp": 8, "recompute": "full/block4"},
            ("full/block4", "4 layers", "full/uniform1"),
        ),
        (
            LLAMA3_8B,
            {"pp": 8, "recompute": "full/block8"},
            ("full/block", 8, "4 layers"),
        ),
        (LLAMA3_8B, {"ep": 2}, ("ep", 1, 2)),
        (MIXTRAL, {"ep": 16}, ("num_experts", "ep", 8, 16)),
        (MIXTRAL, {"etp": 4}, ("etp", "search", 4, "tp 1")),
        (
            MIXTRAL,
            {"pp": 8, "ep": 8, "etp": 2, "tp": 2},
            ("n_gpus", "etp*ep*pp", 64, 128),
        ),
        (f"{LLAMA3_8B} --tp-comm-overlap", {}, ("--tp-comm-overlap", "sequence")),
        (
            f"{LLAMA3_8B} --cuda-graph-impl local",
            {"recompute": "full/uniform1"},
            ("--cuda-graph-impl local", "no full"),
        ),
        (ONE_H200, {"cp": 1, "mbs": 3}, ("gbs", "dp*mbs", 16, 3)),
    ],
)
def test_the_first_rule_that_a_point_breaks_is_named(command: str, change: Params, named: tuple[object, ...]) -> None:
    assert mentions(space(command).explain({**PLAIN, **change}), *named)


def test_a_layout_is_whole() -> None:
    point: Params = {**PLAIN, "tp": 4, "pp": 2, "vp": 2, "mbs": 2, "recompute": "full/block5"}
    assert space(LLAMA3_8B).layout(point) == Layout(
        num_gpus=8,
        tp=4,
        pp=2,
        vp=2,
        micro_batch=2,
        global_batch=128,
        zero=1,
        recompute="full/block",
        recompute_layers=5,
        sequence_parallel=True,
    )


def test_sequence_parallelism_follows_tp_unless_torchs_own_norms_forbid_it_or_it_is_searched() -> None:
    with_tp: Params = {**PLAIN, "tp": 2}
    assert space(tiny()).layout(with_tp).sequence_parallel
    assert not space(tiny()).layout(PLAIN).sequence_parallel
    local = tiny("--transformer-impl local --no-persist-layer-norm")
    assert not space(local).layout(with_tp).sequence_parallel
    assert space(tiny("--transformer-impl local")).layout(with_tp).sequence_parallel
    assert not space(tiny(), "tp+sequence_parallel").layout({**with_tp, "sequence_parallel": False}).sequence_parallel


def test_sequence_parallelism_that_the_command_has_at_tp_1_is_kept() -> None:
    local = tiny("--transformer-impl local --no-persist-layer-norm --sequence-parallel")
    assert space(local).layout({**PLAIN, "tp": 2}).sequence_parallel
    experts = f"{local} --num-experts 4 --disable-bias-linear"
    tensor_parallel = [point for point in space(experts).points() if point["tp"] != 1]
    assert tensor_parallel and all(space(experts).layout(point).sequence_parallel for point in tensor_parallel)
    without = tiny("--transformer-impl local --no-persist-layer-norm --num-experts 4 --disable-bias-linear")
    assert {point["tp"] for point in space(without).points()} == {1}


def test_a_sequence_that_tp_does_not_divide_is_left_whole() -> None:
    odd = space(tiny("--seq-length 129", n_gpus=4, gbs=4))
    assert {odd.layout(point).sequence_parallel for point in odd.points() if point["tp"] == 2} == {False}


def test_a_command_whose_optimizer_is_not_sharded_is_tried_sharded_and_its_own_layout_alone_is_not() -> None:
    found = space(tiny("--pipeline-model-parallel-size 2", n_gpus=4, gbs=8))
    points = list(found.points())
    alone = [point for point in points if found.layout(point).dp == 1]
    unsharded = [point for point in points if point["zero"] == 0 and point not in alone]
    assert unsharded == [found.own_point()]
    assert {point["zero"] for point in alone} == {0}
    assert {**found.own_point(), "zero": 1} in points
    both = space(tiny(n_gpus=4, gbs=8), "default+zero")
    assert {point["zero"] for point in both.points() if both.layout(point).dp == 4} == {0, 1}


def test_a_command_with_tp_and_no_sequence_parallelism_is_tried_with_it() -> None:
    found = space(tiny("--tensor-model-parallel-size 2 --use-distributed-optimizer", n_gpus=4, gbs=8))
    without = [point for point in found.points() if point["tp"] != 1 and not point["sequence_parallel"]]
    assert without == [found.own_point()]
    assert "sequence_parallel" not in space(LLAMA3_8B).choices and "zero" not in space(LLAMA3_8B).choices


@pytest.mark.parametrize(
    ("options", "is_tried"),
    [
        ("", True),
        ("--optimizer adam", True),
        ("--optimizer sgd", False),
        ("--optimizer muon", False),
        ("--load checkpoints", False),
        ("--load checkpoints --finetune", True),
    ],
)
def test_the_distributed_optimizer_is_tried_where_it_goes(options: str, is_tried: bool) -> None:
    assert ("zero" in space(tiny(options)).searched) == is_tried


def test_one_gpu_has_nothing_to_shard() -> None:
    assert "zero" not in space(tiny(n_gpus=1, gbs=4)).choices


def test_pipelines_are_laid_out_in_as_many_chunks_as_a_plan_has() -> None:
    found = space(LLAMA3_8B)
    assert found.choices["vp"] == (1, 2, 3, 4, 5, 6, 7, 8, 16)
    planned = Axes(model=load_model("llama3-8b"), job=found.job.job, num_gpus=8, space=SearchSpace()).pipeline()
    tried = {(point["pp"], point["vp"]) for point in found.points()}
    assert tried <= {(pp, vp) for pp, vp, _ in planned}
    assert {(2, 3), (4, 3), (2, 7)} <= tried


def test_a_pipeline_that_the_command_splits_by_itself_stays_a_choice() -> None:
    own: Params = {**PLAIN, "pp": 2, "vp": 4, "zero": 0}
    command = tiny("--pipeline-model-parallel-size 2", n_gpus=2, gbs=4)
    assert mentions(space(command).explain(own), "num_layers", "pp*vp", 6, 8)
    # Stages of their own for embedding and loss, which no plan makes.
    laid_out = space(f"{command} --pipeline-model-parallel-layout 'E|t|t|t|t|t|t|L'")
    assert laid_out.explain(own) is None
    assert own in list(laid_out.points())


def test_names_to_search_are_split() -> None:
    assert search_names("default+zero") == ["default", "zero"]
