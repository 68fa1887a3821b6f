from __future__ import annotations

import pytest

from tests.planner.mimo.jobs import mimo_job, module
from zenith_tune.mimo.measured_step import LinkTime, MeasuredStep, PassKey, TimedPass
from zenith_tune.planner.mimo.candidate import MimoCandidate
from zenith_tune.planner.mimo.prediction import predict
from zenith_tune.planner.mimo.rate_fit import MeasuredLayout, fit_rates, with_rates
from zenith_tune.planner.mimo.search import describe_rates

JOB = mimo_job(4, encoder=module(2, 1.0), language=module(4, 1.0), items=(1,))
LAYER = {"encoder": (0.001, 0.002), "llm": (0.003, 0.010)}
"""Fixed seconds of a layer, and seconds for each unit, forward; backward takes twice as long."""
SUM_S, UPDATE_S = 0.0005, 0.001
"""A sum over two ranks; the update of a layer, whose tensors are small."""


def shared(tp: int, mbs: int = 2) -> MimoCandidate:
    return MimoCandidate.of(4, encoder=(tp, 1), language=(tp, 1), encoder_ranks=0, micro_batch=mbs)


def timed(name: str, tp: int, units: int, is_backward: bool) -> TimedPass:
    """Return a pass whose layers take their share and two sums."""
    fixed_s, each_s = LAYER[name]
    layer_s = (fixed_s + each_s * units / tp) * (2 if is_backward else 1) + 2 * SUM_S * (tp > 1)
    num_layers = JOB.encoder.num_layers if name == "encoder" else JOB.language.num_layers
    return TimedPass(PassKey(name, tp, 1, 0, units, is_backward), 10, 0.0, num_layers * layer_s, 0.0)


def run(tp: int, mbs: int) -> MeasuredLayout:
    params = 6 * (1000 / tp + 10)
    return MeasuredLayout(
        at=shared(tp, mbs),
        step=MeasuredStep(
            passes=tuple(timed(name, tp, mbs, back) for name in LAYER for back in (False, True)),
            sync_s=1e-7 * params * 4 * (0.5 + (4 / tp - 1) / (4 / tp)),
            end_s=4 * 0.001 + 6 * UPDATE_S,
            messages=(LinkTime(2, 100.0, 0.0002), LinkTime(2, 1100.0, 0.0003)),
            sums=(LinkTime(2, 100.0, SUM_S), LinkTime(2, 1100.0, SUM_S), LinkTime(4, 100.0, 0.001)),
        ),
    )


def test_a_line_is_found_from_two_micro_batches() -> None:
    rates = fit_rates(JOB, [run(1, 1), run(1, 4)])
    assert rates is not None
    forward, backward = (rates.language.parts["layer", back, 1] for back in (False, True))
    assert (forward.fixed_s, forward.each_s) == pytest.approx((0.003, 0.010))
    assert backward.at(2) == pytest.approx(2 * (0.003 + 2 * 0.010))
    assert rates.message.at(600) == pytest.approx(0.00025, rel=0.1)
    assert rates.sums[4].fixed_s == 0.001 and rates.agree_s == pytest.approx(0.004)


def test_a_degree_that_nobody_ran_gets_its_share_of_arithmetic_and_its_sums() -> None:
    rates = fit_rates(JOB, [run(1, 1), run(1, 4)])
    assert rates is not None
    split = rates.language.parts["layer", False, 2]
    assert split.at(4) == pytest.approx(0.003 + 4 * 0.010 / 2 + 2 * SUM_S)


def test_what_a_degree_took_for_real_goes_before_its_share() -> None:
    slow = run(2, 4)
    rates = fit_rates(JOB, [run(1, 1), run(1, 4), slow])
    assert rates is not None
    forward = next(each for each in slow.step.passes if each.key.module == "llm" and not each.key.is_backward)
    assert rates.language.pass_s(JOB.language, slow.at.language, 0, 4, False) == pytest.approx(forward.blocks_s)
    sent_s = rates.language.tensor_s(JOB.language, slow.at.language, 0, 4, False)
    assert sent_s == pytest.approx(4 * (0.003 / 2 + 2 * SUM_S))


def test_the_predicted_step_is_that_of_the_measured_parts() -> None:
    job = with_rates(JOB, fit_rates(JOB, [run(1, 1), run(1, 4), run(2, 2)]))  # type: ignore[arg-type]
    found = predict(job, shared(1, 2))
    passes_s = 3 * (2 * (0.001 + 2 * 0.002) + 4 * (0.003 + 2 * 0.010))
    assert found.step_s - found.sync_s == pytest.approx(passes_s)
    end_s, sync_s = 4 * 0.001 + 6 * UPDATE_S, 1e-7 * 6 * 1010 * 4 * 1.25
    assert found.sync_s == pytest.approx(end_s + sync_s, rel=0.02)
    assert predict(job, shared(4, 2)).sync_s == pytest.approx(end_s, rel=0.02)


def test_nothing_is_known_before_both_modules_were_seen() -> None:
    whole = run(1, 2)
    half = MeasuredStep(passes=whole.step.passes[:2], sync_s=0.0, end_s=0.0)
    assert fit_rates(JOB, []) is None
    assert fit_rates(JOB, [MeasuredLayout(at=whole.at, step=half)]) is None


def test_one_micro_batch_borrows_the_fixed_part_of_the_other_module() -> None:
    one = run(1, 2)
    more = tuple(timed("encoder", 1, 6, back) for back in (False, True))
    told = MeasuredStep(passes=(*one.step.passes, *more), sync_s=0.0, end_s=0.0)
    rates = fit_rates(JOB, [MeasuredLayout(at=one.at, step=told)])
    assert rates is not None
    line = rates.language.parts["layer", False, 1]
    assert line.fixed_s == pytest.approx(0.001) and line.at(2) == pytest.approx(0.023)


def test_the_rates_are_told_in_one_line() -> None:
    rates = fit_rates(JOB, [run(1, 1), run(1, 4)])
    assert rates is not None
    line = describe_rates(JOB, rates, 2)
    item_ms, sample_ms = 3 * 2 * 3.0, 3 * 4 * 13.0
    assert line.startswith(f"measured in 2 runs: a rank takes {item_ms:.1f} ms for an item and {sample_ms:.1f} ms")
    assert "a message 0.19 ms" in line or "a message 0.20 ms" in line
