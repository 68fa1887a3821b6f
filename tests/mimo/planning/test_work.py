"""The work of a module, and the rates at which it is done."""

from __future__ import annotations

from zenith_mimo.planning.work import MeasuredPass, PassRate, fit_rate, stage_layers


def test_layers_are_spread_evenly_over_stages() -> None:
    assert [list(stage_layers(5, stage, 3)) for stage in range(3)] == [[0], [1, 2], [3, 4]]


def test_a_pass_takes_its_flops_and_its_layers() -> None:
    rate = PassRate(flops_per_s=1e12, layer_s=1e-3)
    assert rate.seconds(2e9, num_layers=1) == 0.002
    assert rate.seconds(2e9, num_layers=4) == 0.004


def test_the_least_time_says_what_starting_takes() -> None:
    work = ((0.1, 1), (4, 1), (8, 4))
    passes = [MeasuredPass(x * 1e9, n * 1e6, max(1e-3, x * 1e-3 + n * 1e-4)) for x, n in work]
    assert fit_rate(passes) == PassRate(flops_per_s=1e12, number_s=1e-10, layer_s=1e-3, start_s=0.0)
