from __future__ import annotations

from tests.layouts.specs import LLAMA_70B, LLAMA_405B, MIXTRAL, job
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.rules import broken_rules
from zenith_tune.layouts.search_space import SearchSpace
from zenith_tune.planner.neighbours import neighbours
from zenith_tune.planner.plan import changes


def layout(**sizes: int) -> Layout:
    return Layout(num_gpus=64, global_batch=512, sequence_parallel=True, recompute="full/block", recompute_layers=7,
                  tp=sizes.pop("tp", 8), pp=sizes.pop("pp", 4), zero=1, ep=sizes.pop("ep", 1))  # fmt: skip


def test_neighbours_hold_the_rules_and_keep_batch_and_gpus() -> None:
    for model in (LLAMA_70B, LLAMA_405B, MIXTRAL):
        found = neighbours(model, job(), layout())
        assert len(found) == len(set(found)) > 10
        for step in found:
            assert broken_rules(model, job(), step) == []
            assert (step.num_gpus, step.global_batch) == (64, 512)


def test_every_size_has_a_step() -> None:
    found = neighbours(MIXTRAL, job(), layout(tp=2, pp=2, ep=4))
    at = layout(tp=2, pp=2, ep=4)
    for name in ("tp", "pp", "vp", "cp", "ep", "etp", "micro_batch", "zero", "recompute"):
        assert any(getattr(step, name) != getattr(at, name) for step in found), name


def test_sequence_parallelism_goes_with_the_last_tensor_rank() -> None:
    down = [step for step in neighbours(LLAMA_70B, job(), layout(tp=2)) if step.tp == 1]
    assert down and not any(step.sequence_parallel for step in down)


def test_neighbours_keep_what_a_space_gives() -> None:
    space = SearchSpace(
        pinned={"cp": 1, "mbs": 1}, max_tp=8, uneven_splits=False, recompute=("selective", "full/block")
    )
    found = neighbours(LLAMA_70B, job(), layout(), space)
    assert found and {step.cp for step in found} == {1} and {step.micro_batch for step in found} == {1}
    assert max(step.tp for step in found) == 8
    assert {step.recompute for step in found} <= {"selective", "full/block"}
    assert all(80 % (step.pp * step.vp) == 0 for step in found)


def test_a_change_is_said_in_full() -> None:
    assert changes(layout(), layout()) == "nothing"
    assert changes(layout(tp=8), layout(tp=4)) == "tp 8 -> 4, dp 2 -> 4"
