from __future__ import annotations

from tests.strategies.zero_progressive.worlds import World, search, space
from zenith_tune.strategies.zero_progressive.feasibility import MeasuredMemory
from zenith_tune.study.parameters import Value
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.units import GIB

STATES = {0: 40, 1: 20, 2: 12, 3: 8}
"""GiB that each stage keeps; a sample takes 3 of the 80 that there are."""


def need_gib(stage: int, mbs: int) -> int:
    return STATES[stage] + 3 * mbs


def trial(stage: int, mbs: int, **others: Value) -> Trial:
    params = {"stage": stage, "mbs": mbs, **others}
    if need_gib(stage, mbs) > 80:
        cause = "CUDA out of memory. Tried to allocate 9.00 GiB. GPU 0 has a total capacity of 80.00 GiB"
        return Trial(params=params, outcome=Outcome.OOM, cause=cause)
    return Trial(params=params, outcome=Outcome.OK, value=1.0, peak_memory_bytes=need_gib(stage, mbs) * GIB)


def observed(*trials: Trial) -> MeasuredMemory:
    memory = MeasuredMemory()
    for each in trials:
        memory.observe(each)
    return memory


def test_two_runs_at_a_stage_are_a_line() -> None:
    memory = observed(trial(0, 1), trial(0, 4))
    assert memory.needed({"stage": 0, "mbs": 10}) == need_gib(0, 10) * GIB
    assert not memory.is_measured({"stage": 1, "mbs": 1})


def test_a_further_stage_needs_one_run() -> None:
    memory = observed(trial(0, 1), trial(0, 4), trial(1, 8))
    assert memory.needed({"stage": 1, "mbs": 16}) == need_gib(1, 16) * GIB
    assert not observed(trial(0, 1), trial(0, 4), trial(1, 8, checkpointing=True)).is_measured(
        {"stage": 1, "mbs": 16, "checkpointing": True}
    ), "recomputed activations take another memory"


def test_nothing_is_ruled_out_before_a_run_has_failed() -> None:
    memory = observed(trial(0, 1), trial(0, 4))
    assert memory.why_not({"stage": 0, "mbs": 1000}) is None
    assert memory.largest({"stage": 0, "mbs": 1}, [1, 2, 4]) is None


def test_what_failed_and_the_capacity_that_it_tells_rule_out_what_needs_as_much() -> None:
    memory = observed(trial(0, 1), trial(0, 4), trial(0, 16), trial(1, 1))
    sizes = [1, 2, 4, 8, 10, 13, 14, 16, 20, 32]
    assert memory.largest({"stage": 0, "mbs": 1}, sizes) == 13
    assert memory.largest({"stage": 1, "mbs": 1}, sizes) == 16
    assert memory.why_not({"stage": 1, "mbs": 20}) is not None


def test_a_search_without_a_model_runs_into_fewer_failures() -> None:
    world = World(
        fits=lambda point: need_gib(int(point["stage"]), int(point["mbs"])) <= 80,
        peak=lambda point: need_gib(int(point["stage"]), int(point["mbs"])) * GIB,
    )
    sizes = (1, 2, 3, 4, 6, 8, 12, 13, 16, 20, 24, 32, 48, 64)
    search(world, space(sizes, stages=(0, 1, 2)))
    blind = World(fits=world.fits)
    search(blind, space(sizes, stages=(0, 1, 2)))
    best, best_blind = (max(filter(each.fits, each.runs), key=each.speed) for each in (world, blind))
    assert world.speed(best) >= world.speed(best_blind)
    failed, failed_blind = (sum(not world.fits(run) for run in each.runs) for each in (world, blind))
    assert failed < failed_blind
