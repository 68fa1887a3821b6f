from __future__ import annotations

from collections.abc import Mapping

import pytest

from zenith_tune.errors import TrialExhausted, UsageError
from zenith_tune.presets.megatron.documented.preset import MegatronPreset
from zenith_tune.strategies.base import StrategyRegistry
from zenith_tune.strategies.megatron_heuristic import MegatronHeuristicStrategy
from zenith_tune.study.parameters import (
    BoolParameter,
    CategoricalParameter,
    Direction,
    FloatParameter,
    IntParameter,
    Parameter,
    Value,
)
from zenith_tune.testing import ScriptedTrials, StrategyContract

STAGE_1_ON_8 = [
    "tp8 ep1 mbs1 full",
    "tp4 ep1 mbs1 full",
    "tp4 ep2 mbs1 full",
    "tp2 ep1 mbs1 full",
    "tp2 ep2 mbs1 full",
    "tp2 ep4 mbs1 full",
    "tp1 ep1 mbs1 full",
    "tp1 ep2 mbs1 full",
    "tp1 ep4 mbs1 full",
    "tp1 ep8 mbs1 full",
]


def space(sizes: list[Value], micro_batches: list[Value]) -> dict[str, Parameter]:
    """Return the documented search space, with these parallel sizes and micro-batches."""
    return {
        "tp": CategoricalParameter(sizes),
        "pp": CategoricalParameter(sizes),
        "cp": CategoricalParameter(sizes),
        "ep": CategoricalParameter(sizes),
        "etp": CategoricalParameter(sizes),
        "mbs": CategoricalParameter(micro_batches),
        "recompute_granularity": CategoricalParameter(["full", "selective"]),
        "recompute_method": CategoricalParameter(["uniform", "block"]),
        "recompute_num_layers": CategoricalParameter([1, 2, 3, 4]),
        "vit_gradient_checkpointing": CategoricalParameter(["true", "false"]),
    }


SPACE_OF_8 = space([1, 2, 4, 8], [1, 2, 4, 8])


def name_of(point: Mapping[str, Value]) -> str:
    return f"tp{point['tp']} ep{point['ep']} mbs{point['mbs']} {point['recompute_granularity']}"


def throughput(point: Mapping[str, Value]) -> float:
    """Grow with the micro-batch, shrink with ep: the best ep is 1, the best micro-batch the largest."""
    return 100 * float(point["mbs"]) - float(point["ep"])


def asked(
    values: dict[str, float],
    failing: set[str] | frozenset[str] = frozenset(),
    *,
    n_gpus: int = 8,
    micro_batches: tuple[Value, ...] = (1, 2, 4, 8),
    direction: Direction = Direction.MAXIMIZE,
) -> list[str]:
    """Return the points asked for, in order, where `values` overrides the throughput and `failing` fail."""

    def answer(point: Mapping[str, Value]) -> float | None:
        name = name_of(point)
        return None if name in failing else values.get(name, throughput(point))

    sizes: list[Value] = [size for size in (1, 2, 4, 8, 16) if size <= n_gpus]
    evaluation = ScriptedTrials(answer)
    strategy = MegatronHeuristicStrategy(n_gpus=n_gpus)
    search_space = space(sizes, list(micro_batches))
    strategy.optimize(evaluation, search_space, direction)
    assert len(evaluation.points) <= strategy.max_trials(search_space)
    return [name_of(point) for point in evaluation.points]


def test_one_gpu_asks_only_for_micro_batches() -> None:
    assert asked({}, n_gpus=1) == [
        "tp1 ep1 mbs1 full",
        "tp1 ep1 mbs1 selective",
        "tp1 ep1 mbs2 selective",
        "tp1 ep1 mbs4 selective",
        "tp1 ep1 mbs8 selective",
        "tp1 ep1 mbs8 full",
    ]


def test_one_gpu_whose_only_pair_fails_ends_after_one_trial() -> None:
    assert asked({}, {"tp1 ep1 mbs1 full"}, n_gpus=1) == ["tp1 ep1 mbs1 full"]


def test_eight_gpus_where_all_goes_well() -> None:
    assert asked({}) == [
        *STAGE_1_ON_8,
        "tp8 ep1 mbs1 selective",
        "tp8 ep1 mbs2 selective",
        "tp8 ep1 mbs4 selective",
        "tp8 ep1 mbs8 selective",
        "tp8 ep1 mbs8 full",
        "tp4 ep1 mbs1 selective",
        "tp4 ep1 mbs2 selective",
        "tp4 ep1 mbs4 selective",
        "tp4 ep1 mbs8 selective",
        "tp4 ep1 mbs8 full",
        "tp2 ep1 mbs1 selective",
        "tp2 ep1 mbs2 selective",
        "tp2 ep1 mbs4 selective",
        "tp2 ep1 mbs8 selective",
        "tp2 ep1 mbs8 full",
        "tp1 ep1 mbs1 selective",
        "tp1 ep1 mbs2 selective",
        "tp1 ep1 mbs4 selective",
        "tp1 ep1 mbs8 selective",
        "tp1 ep1 mbs8 full",
    ]


def test_failures_at_every_kind_of_place_on_eight_gpus() -> None:
    failing = {
        "tp8 ep1 mbs1 full",  # the very first trial: no stage 2 for tp 8
        "tp4 ep1 mbs1 full",  # so that the best ep of tp 4 is 2
        "tp4 ep2 mbs1 selective",  # selective reaches nothing: full starts at 2
        "tp4 ep2 mbs8 full",
        "tp2 ep4 mbs4 selective",  # selective reaches 2: full starts there
        "tp1 ep1 mbs1 full",
        "tp1 ep2 mbs1 full",
        "tp1 ep4 mbs1 full",
        "tp1 ep8 mbs1 full",  # all of tp 1: no stage 2
    }
    assert asked({"tp2 ep4 mbs1 full": 1000.0}, failing) == [
        *STAGE_1_ON_8,
        "tp4 ep2 mbs1 selective",
        "tp4 ep2 mbs2 full",
        "tp4 ep2 mbs4 full",
        "tp4 ep2 mbs8 full",
        "tp2 ep4 mbs1 selective",
        "tp2 ep4 mbs2 selective",
        "tp2 ep4 mbs4 selective",
        "tp2 ep4 mbs2 full",
        "tp2 ep4 mbs4 full",
        "tp2 ep4 mbs8 full",
    ]


def test_full_starts_at_the_best_micro_batch_of_selective_not_at_the_largest() -> None:
    only_tp_8 = {name for name in STAGE_1_ON_8 if not name.startswith("tp8")}
    assert asked({"tp8 ep1 mbs2 selective": 9999.0}, only_tp_8) == [
        *STAGE_1_ON_8,
        "tp8 ep1 mbs1 selective",
        "tp8 ep1 mbs2 selective",
        "tp8 ep1 mbs4 selective",
        "tp8 ep1 mbs8 selective",
        "tp8 ep1 mbs2 full",
        "tp8 ep1 mbs4 full",
        "tp8 ep1 mbs8 full",
    ]


def test_full_skips_micro_batch_1_where_selective_was_best_there() -> None:
    only_tp_8 = {name for name in STAGE_1_ON_8 if not name.startswith("tp8")}
    assert asked({"tp8 ep1 mbs1 selective": 9999.0}, only_tp_8 | {"tp8 ep1 mbs2 full"}) == [
        *STAGE_1_ON_8,
        "tp8 ep1 mbs1 selective",
        "tp8 ep1 mbs2 selective",
        "tp8 ep1 mbs4 selective",
        "tp8 ep1 mbs8 selective",
        "tp8 ep1 mbs2 full",
    ]


def test_a_smaller_value_is_better_when_minimizing() -> None:
    only_tp_4 = {name for name in STAGE_1_ON_8 if not name.startswith("tp4")}
    step_s = {"tp4 ep1 mbs1 full": 3.0, "tp4 ep2 mbs1 full": 2.0}
    step_s |= {f"tp4 ep2 mbs{mbs} selective": value for mbs, value in [(1, 1.9), (2, 1.5), (4, 1.1), (8, 1.4)]}
    assert asked(step_s, only_tp_4, direction=Direction.MINIMIZE) == [
        *STAGE_1_ON_8,
        "tp4 ep2 mbs1 selective",
        "tp4 ep2 mbs2 selective",
        "tp4 ep2 mbs4 selective",
        "tp4 ep2 mbs8 selective",
        "tp4 ep2 mbs4 full",
        "tp4 ep2 mbs8 full",
    ]


def test_the_first_of_equal_values_is_kept() -> None:
    only_tp_4 = {name for name in STAGE_1_ON_8 if not name.startswith("tp4")}
    same = {f"tp4 ep{ep} mbs1 full": 5.0 for ep in (1, 2)} | {
        f"tp4 ep1 mbs{mbs} selective": 7.0 for mbs in (1, 2, 4, 8)
    }
    assert asked(same, only_tp_4)[len(STAGE_1_ON_8) :][4:] == [
        "tp4 ep1 mbs2 full",
        "tp4 ep1 mbs4 full",
        "tp4 ep1 mbs8 full",
    ]


def test_sixteen_gpus_hold_to_the_two_stages_for_every_single_failure_of_stage_1() -> None:
    stage_1 = [f"tp{tp} ep{ep} mbs1 full" for tp in (16, 8, 4, 2, 1) for ep in (1, 2, 4, 8, 16) if tp * ep <= 16]
    assert len(stage_1) == 15
    for failed in stage_1:
        expected = list(stage_1)
        for tp in (16, 8, 4, 2, 1):
            left = [ep for ep in (1, 2, 4, 8, 16) if tp * ep <= 16 and f"tp{tp} ep{ep} mbs1 full" != failed]
            if left:
                expected += [f"tp{tp} ep{left[0]} mbs{mbs} selective" for mbs in (1, 2, 4)]
                expected += [f"tp{tp} ep{left[0]} mbs4 full"]
        assert asked({}, {failed}, n_gpus=16, micro_batches=(1, 2, 4)) == expected


def test_a_vision_language_models_pruned_selective_is_a_failure() -> None:
    selective = {f"tp{tp} ep1 mbs1 selective" for tp in (1, 2, 4, 8)}
    expected = [f"tp{tp} ep1 {end}" for tp in (8, 4, 2, 1) for end in ("mbs1 selective", "mbs2 full", "mbs4 full")]
    assert asked({}, selective, micro_batches=(1, 2, 4))[len(STAGE_1_ON_8) :] == expected


def test_every_point_has_all_keys_in_the_order_of_the_search_space_and_the_fixed_values() -> None:
    reordered = dict(reversed(SPACE_OF_8.items()))
    evaluation = ScriptedTrials(throughput)
    MegatronHeuristicStrategy(n_gpus=8).optimize(evaluation, reordered, Direction.MAXIMIZE)
    assert {tuple(point) for point in evaluation.points} == {tuple(reordered)}
    fixed = ("pp", "cp", "etp", "recompute_method", "recompute_num_layers", "vit_gradient_checkpointing")
    assert {tuple(point[name] for name in fixed) for point in evaluation.points} == {(1, 1, 1, "uniform", 1, "true")}


def test_choices_out_of_order_are_tried_in_order() -> None:
    evaluation = ScriptedTrials(throughput)
    shuffled = space([4, 1, 8, 2], [8, 1, 4, 2])
    MegatronHeuristicStrategy(n_gpus=8).optimize(evaluation, shuffled, Direction.MAXIMIZE)
    assert [name_of(point) for point in evaluation.points] == asked({})


def test_a_size_that_does_not_divide_the_gpus_is_left_out() -> None:
    evaluation = ScriptedTrials(lambda point: None)
    MegatronHeuristicStrategy(n_gpus=4).optimize(evaluation, space([1, 3, 4, 16], [1]), Direction.MAXIMIZE)
    assert [name_of(point) for point in evaluation.points] == [
        "tp4 ep1 mbs1 full",
        "tp1 ep1 mbs1 full",
        "tp1 ep4 mbs1 full",
    ]


def test_a_parameter_the_strategy_does_not_know_keeps_its_first_choice() -> None:
    evaluation = ScriptedTrials(throughput)
    more = {**SPACE_OF_8, "attention": CategoricalParameter(["flash", "fused"])}
    MegatronHeuristicStrategy(n_gpus=8).optimize(evaluation, more, Direction.MAXIMIZE)
    assert {point["attention"] for point in evaluation.points} == {"flash"}


@pytest.mark.parametrize("budget", [0, 1, 9, 10, 11, 17, 29])
def test_a_spent_budget_passes_through_and_keeps_the_order(budget: int) -> None:
    evaluation = ScriptedTrials(throughput, budget=budget)
    with pytest.raises(TrialExhausted, match=f"budget of {budget} trials"):
        MegatronHeuristicStrategy(n_gpus=8).optimize(evaluation, SPACE_OF_8, Direction.MAXIMIZE)
    assert [name_of(point) for point in evaluation.points] == asked({})[:budget]


def test_a_larger_budget_is_unused() -> None:
    evaluation = ScriptedTrials(throughput, budget=1000)
    MegatronHeuristicStrategy(n_gpus=8).optimize(evaluation, SPACE_OF_8, Direction.MAXIMIZE)
    assert len(evaluation.points) == 30


def test_the_bound_on_trials_is_met_where_full_does_all_it_can() -> None:
    # Selective is best at 1 everywhere, and full then runs every other micro-batch.
    values = {f"tp{tp} ep1 mbs1 selective": 9999.0 for tp in (1, 2, 4, 8)}
    assert len(asked(values)) == MegatronHeuristicStrategy(n_gpus=8).max_trials(SPACE_OF_8) == 10 + 4 * 7


@pytest.mark.parametrize("n_gpus", [0, -8, 3, 6, 12])
def test_gpus_that_are_no_power_of_two_are_refused_with_a_hint(n_gpus: int) -> None:
    with pytest.raises(UsageError) as caught:
        MegatronHeuristicStrategy(n_gpus=n_gpus)
    assert "n_gpus" in caught.value.problem and f"got {n_gpus}" in caught.value.problem
    assert "power of two" in caught.value.hint and "--strategy" in caught.value.hint


def test_other_keywords_are_ignored() -> None:
    assert MegatronHeuristicStrategy(n_gpus=8, gbs=16, model="x").n_gpus == 8


@pytest.mark.parametrize("name", list(SPACE_OF_8))
@pytest.mark.parametrize("parameter", [IntParameter(1, 8), FloatParameter(1.0, 8.0)])
def test_a_parameter_that_is_not_categorical_is_named_with_its_type(name: str, parameter: Parameter) -> None:
    error = _refused({**SPACE_OF_8, name: parameter})
    assert f"{name!r} " in error and "CategoricalParameter" in error and f"{type(parameter).__name__}:" in error


@pytest.mark.parametrize(
    ("name", "choices", "missing"),
    [
        ("pp", [2], "1"),
        ("cp", [2, 4], "1"),
        ("etp", ["1"], "1"),
        ("mbs", [2, 4], "1"),
        ("recompute_granularity", ["full"], "'selective'"),
        ("recompute_granularity", ["selective"], "'full'"),
        ("recompute_method", ["block"], "'uniform'"),
        ("recompute_num_layers", [2], "1"),
        ("vit_gradient_checkpointing", ["false"], "'true'"),
    ],
)
def test_a_value_the_strategy_fixes_and_the_space_lacks_is_named(name: str, choices: list[Value], missing: str) -> None:
    error = _refused({**SPACE_OF_8, name: CategoricalParameter(choices)})
    assert f"{name!r} to hold {missing}, " in error and f"{choices}:" in error


def test_a_bool_is_not_the_text_that_the_strategy_fixes() -> None:
    error = _refused({**SPACE_OF_8, "vit_gradient_checkpointing": BoolParameter()})
    assert "'vit_gradient_checkpointing' to hold 'true', " in error and "[False, True]" in error


@pytest.mark.parametrize("name", list(SPACE_OF_8))
def test_a_key_that_the_space_lacks_is_named(name: str) -> None:
    error = _refused({key: parameter for key, parameter in SPACE_OF_8.items() if key != name})
    assert f"needs {name!r} " in error and "search space" in error and "choices" not in error


@pytest.mark.parametrize("name", ["tp", "ep", "mbs"])
def test_sizes_that_are_no_whole_numbers_are_named(name: str) -> None:
    error = _refused({**SPACE_OF_8, name: CategoricalParameter([1, "2"])})
    assert f"{name!r} to hold " in error and "whole numbers" in error and "[1, '2']" in error


def _refused(search_space: dict[str, Parameter]) -> str:
    """Return the message of the error that comes before any trial, in one line."""
    evaluation = ScriptedTrials(throughput)
    with pytest.raises(UsageError) as caught:
        MegatronHeuristicStrategy(n_gpus=8).optimize(evaluation, search_space, Direction.MAXIMIZE)
    assert evaluation.points == []
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_it_is_what_the_megatron_preset_recommends_and_its_space_suits_it() -> None:
    preset = MegatronPreset(n_gpus=8, gbs=16)
    strategy = preset.get_recommended_strategy()
    assert type(strategy) is StrategyRegistry.get("megatron-heuristic")
    assert strategy.ends_by_itself
    assert strategy.max_trials(preset.get_search_space()) == 38


class TestMegatronHeuristicStrategy(StrategyContract):
    def make(self) -> MegatronHeuristicStrategy:
        return MegatronHeuristicStrategy(n_gpus=8)

    def space(self) -> dict[str, Parameter]:
        return SPACE_OF_8
