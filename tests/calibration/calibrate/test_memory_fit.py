from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.estimates.memory_cases import llama
from zenith_calibration.calibrate.memory_fit import MemoryRows, fit_memory, layout_columns, shortest_half, usable
from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.estimates.calibration import MemoryCoefficients
from zenith_tune.layouts.layout_batch import RECOMPUTE_NONE, RECOMPUTE_UNIFORM
from zenith_tune.units import GIB


def a_run(framework: str = "megatron", source: str = "made up", **layout: int | bool) -> MeasuredRun:
    at: dict[str, int | bool] = {"mbs": 1, "gbs": 64, "dp": 8} | layout
    return MeasuredRun(
        source=source,
        framework=framework,
        stated_framework=framework,
        model=llama(num_layers=16, hidden=2048, ffn_hidden=8192, num_heads=32, num_kv_heads=32, vocab=131072),
        model_name="made up",
        gpu="h100",
        num_gpus=8 * at.get("tp", 1),  # a landscape of its own for each tp
        gpus_per_node=8,
        precision="bf16",
        seq_len=4096,
        layout=at,
        memory_bytes=1.0 * GIB,
    )


def measured_as(coefficients: MemoryCoefficients, framework: str, shown_by: str = "") -> list[MeasuredRun]:
    """Return runs whose memory is what a framework with these coefficients needs."""
    choices = itertools.product((1, 4, 16), (1, 2, 4, 8), (RECOMPUTE_NONE, RECOMPUTE_UNIFORM))
    runs = [
        a_run(framework, tp=tp, mbs=mbs, zero=1, recompute=recompute, sequence_parallel=tp > 1)
        for tp, mbs, recompute in choices
    ]
    found = MemoryRows.of(runs, load_framework(shown_by or framework)).printed(coefficients)
    return [replace(run, memory_bytes=float(size)) for run, size in zip(runs, found, strict=True)]


def test_a_fit_finds_the_coefficients_that_made_the_data() -> None:
    truth = MemoryCoefficients(activations=1.2, logits=0.9, fixed_bytes=0.4 * GIB)
    fitted = fit_memory(measured_as(truth, "megatron"), load_framework("megatron"))
    assert (fitted.activations, fitted.logits) == pytest.approx((1.2, 0.9), rel=0.03)
    assert fitted.fixed_bytes == pytest.approx(0.4 * GIB, rel=0.2)


def test_a_few_wrong_rows_do_not_move_a_fit() -> None:
    runs = measured_as(MemoryCoefficients(activations=1.1), "megatron")
    wrong = [replace(run, memory_bytes=3 * (run.memory_bytes or 0)) for run in runs[:3]]
    fitted = fit_memory([*wrong, *runs[3:]], load_framework("megatron"))
    assert fitted.activations == pytest.approx(1.1, rel=0.03)


def test_runs_of_a_variant_are_counted_apart_and_do_not_move_the_fit() -> None:
    plain = measured_as(MemoryCoefficients(), "nanotron")
    waiting = measured_as(MemoryCoefficients(), "nanotron", shown_by="nanotron-waiting")
    fitted = fit_memory([*plain, *plain, *waiting], load_framework("nanotron"))
    assert fitted.activations == pytest.approx(1.0, rel=0.01)
    assert fitted.variant_share == pytest.approx(1 / 3, abs=0.01)


def test_errors_are_those_on_landscapes_that_a_fit_has_not_seen() -> None:
    runs = measured_as(MemoryCoefficients(), "megatron")
    by_landscape = {1: 1.0, 4: 1.2, 16: 0.8}
    apart = [replace(run, memory_bytes=(run.memory_bytes or 0) * by_landscape[run.layout["tp"]]) for run in runs]
    fitted = fit_memory(apart, load_framework("megatron"))
    low, high = fitted.interval
    in_sample = np.log([0.8, 1.2]) - fitted.log_middle
    assert low < in_sample[0] and high > in_sample[1]


def test_one_landscape_is_taken_to_show_half_of_the_spread() -> None:
    runs = [run for run in measured_as(MemoryCoefficients(), "megatron") if run.layout["tp"] == 1]
    factors = np.exp(np.linspace(-0.1, 0.1, len(runs)))
    apart = [
        replace(run, memory_bytes=(run.memory_bytes or 0) * factor) for run, factor in zip(runs, factors, strict=True)
    ]
    low, high = fit_memory(apart, load_framework("megatron")).interval
    assert low < -0.2 and high > 0.2


def test_without_runs_the_defaults_stand() -> None:
    assert fit_memory([], load_framework("megatron")) == MemoryCoefficients()


def test_the_shortest_half_stays_with_the_larger_heap() -> None:
    values = np.concatenate([np.linspace(-0.02, 0.02, 70), np.linspace(0.4, 0.8, 50)])
    assert shortest_half(values) == pytest.approx(0.0, abs=0.02)


def test_rows_with_doubts_or_of_other_kinds_of_model_are_left_out() -> None:
    assert usable(a_run()) and not usable(replace(a_run(), flags=("STALE?",)))
    assert not usable(replace(a_run(), model_name="t5/t5_mcore_tp1"))
    assert not usable(replace(a_run(), memory_bytes=None))


def test_deterministic_tests_of_megatron_core_are_read_as_unfused() -> None:
    notes = {"deterministic": "", "CI golden values dev_dgx_h100": ""}
    run = replace(a_run("megatron-ci"), notes=notes, model_name="gpt/gpt3_mcore_te_tp1_pp4_vp1")
    assert layout_columns(run)["flash_attention"] is False
    resumed = replace(run, model_name="gpt/gpt3_mcore_te_tp1_pp4_vp1_resume_torch_dist")
    assert layout_columns(resumed).get("flash_attention", True)


def test_the_shortest_half_stays_with_the_larger_cluster() -> None:
    assert shortest_half(np.array([1.0, 1.1, 1.2, 1.3, 5.0, 6.0, 7.0])).__round__(2) == 1.15
