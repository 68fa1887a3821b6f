from __future__ import annotations

from dataclasses import replace

import pytest

from tests.calibrate.made_runs import LARGE, a_run, layouts, made_runs, timed
from tests.calibrate.test_time_fit import TRUTH
from tests.calibration.calibrate.test_calibration_fit import named
from tests.calibration.calibrate.test_memory_fit import measured_as
from tests.mentions import mentions
from zenith_calibration.calibrate.framework_fits import calibrate_all, most_measured, sources_of
from zenith_tune.errors import UsageError
from zenith_tune.estimates.calibration import MemoryCoefficients


def test_the_framework_with_most_usable_runs_is_chosen() -> None:
    runs = made_runs(TRUTH)
    many = [replace(run, flags=("FLAG",)) for run in named(runs * 2, "nanotron")]
    assert most_measured([*runs, *many]) == "megatron"
    with pytest.raises(UsageError, match=r"\b170\b"):
        most_measured(many[:170])


def test_sources_are_named_the_most_frequent_first() -> None:
    runs = [replace(run, source=f"s{i % 6}") for i, run in enumerate(made_runs(TRUTH)[:20])]
    named_first = sources_of([*runs, *named(runs, "nanotron")], "megatron")
    assert mentions(named_first, "s0, s1, s2, s3", 2) and not mentions(named_first, "s4")


def test_a_framework_of_one_landscape_gets_its_own_memory_and_the_speed_of_megatron() -> None:
    one = named(timed([a_run(LARGE, "h100", 8, layout) for layout in layouts(8)], TRUTH), "megatron-local")
    measured = [replace(run, framework="megatron-local") for run in measured_as(MemoryCoefficients(), "megatron-local")]
    fits = list(calibrate_all([*made_runs(TRUTH), *one, *measured], date="2026-11-15"))
    assert [fit.calibration.framework for fit in fits] == ["megatron", "megatron-local"]
    megatron, local = (fit.calibration for fit in fits)
    assert local.time == replace(megatron.time, sources={}) and local.memory.activations == pytest.approx(1.0, rel=0.02)
    assert local.num_runs >= len(measured)


def test_all_calibrations_need_the_one_that_others_fall_back_to() -> None:
    with pytest.raises(UsageError, match=r"--all .*megatron"):
        list(calibrate_all(named(made_runs(TRUTH), "nanotron"), date=""))
