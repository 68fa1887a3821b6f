"""The work of one stage is what the step is made of, less all that takes two ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.estimates.time_cases import IDEAL, Case, case
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.estimates.calibration import TimeCoefficients
from zenith_tune.estimates.time import stage_time
from zenith_tune.estimates.workload import FloatArray
from zenith_tune.layouts.layout_batch import RECOMPUTE_SELECTIVE, RECOMPUTE_UNIFORM

LLAMA = load_model("llama3-8b")
REAL = TimeCoefficients(network_wait_s=0.0, stage_wait_s=0.0)
"""Coefficients as they are, but for waits that belong to messages."""
OWN = ("compute", "recompute", "optimizer", "overhead")
LAYOUT: dict[str, Any] = {"mbs": 1, "gbs": 64, "zero": 1, "flash_attention": True}


def without_messages(a: Case) -> Case:
    """Return the same case on links that carry everything at once."""
    links = {"fast_bytes_per_s": 1e30, "slow_bytes_per_s": 1e30, "fast_latency_s": 0.0, "slow_latency_s": 0.0}
    return replace(a, machine=replace(a.machine, **links))


def stages_of(a: Case, coefficients: TimeCoefficients, *ranks: float) -> FloatArray:
    """Return the seconds of these ranks of the case's one layout, or of one rank of each of its layouts."""
    rank = np.array(ranks) if len(ranks) == len(a.layouts) else np.full(len(a.layouts), ranks[0])
    return stage_time(a.workload, a.machine, a.layouts, a.framework, coefficients, rank).step_s


def pipeline(model: ModelSpec, pp: int, **others: Any) -> Case:
    """Return as many rows of one layout as it has stages."""
    layout = {**LAYOUT, "tp": 1, "dp": 8 // pp, "pp": np.full(pp, pp), **others}
    return without_messages(case(model, "h100x8", **layout))


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        ("llama3-8b", {"tp": 1, "dp": 8}),
        ("llama3-8b", {"tp": 4, "dp": 2, "sequence_parallel": True}),
        ("llama3-8b", {"tp": 1, "dp": 8, "recompute": RECOMPUTE_SELECTIVE}),
        ("llama3-8b", {"tp": 2, "dp": 4, "recompute": RECOMPUTE_UNIFORM, "recompute_layers": 1}),
        ("llama3-8b", {"tp": 1, "dp": 4, "cp": 2, "flash_attention": False}),
        ("mixtral-8x7b", {"tp": 1, "dp": 8, "ep": 8}),
        ("deepseek-v3", {"tp": 1, "dp": 8, "ep": 4}),
    ],
)
@pytest.mark.parametrize("coefficients", [REAL, IDEAL])
def test_with_one_stage_and_links_that_cost_nothing_it_is_the_step(
    model: str, layout: dict[str, Any], coefficients: TimeCoefficients
) -> None:
    a = without_messages(case(load_model(model), "h100x8", **{**LAYOUT, **layout}))
    assert stages_of(a, coefficients, 0.0) == pytest.approx(a.time(coefficients).step_s, rel=1e-6)


def test_messages_are_left_out_and_nothing_else() -> None:
    a = case(LLAMA, "h100x8", **LAYOUT, tp=4, dp=2, sequence_parallel=True)
    time = a.time(IDEAL)
    own = sum(time.parts[name] for name in OWN)
    assert stages_of(a, IDEAL, 0.0) == pytest.approx(own)
    assert time.parts["tp"] > 0 and time.parts["dp"] > 0
    assert stages_of(a, REAL, 0.0) == pytest.approx(stages_of(without_messages(a), REAL, 0.0))


def test_all_stages_together_do_the_work_of_the_step() -> None:
    a = pipeline(LLAMA, 4)
    total = stages_of(a, IDEAL, 0.0, 1.0, 2.0, 3.0).sum()
    time = a.time(IDEAL)
    assert total == pytest.approx(4 * sum(time.parts[name][0] for name in OWN))


def test_the_slowest_stage_and_the_bubble_make_the_step() -> None:
    a = pipeline(LLAMA, 4)
    seconds, m = stages_of(a, IDEAL, 0.0, 1.0, 2.0, 3.0), 64 / 2
    others = seconds.sum() - seconds.max()
    assert a.time(IDEAL).step_s[0] == pytest.approx(seconds.max() + others / m)


def test_the_last_stage_has_the_head() -> None:
    first, second, third, last = stages_of(pipeline(LLAMA, 4), IDEAL, 0.0, 1.0, 2.0, 3.0)
    assert first == second == third < last
    wide = replace(LLAMA, vocab=2 * LLAMA.vocab)
    *others, wider = stages_of(pipeline(wide, 4), IDEAL, 0.0, 1.0, 2.0, 3.0)
    assert others == [first] * 3 and wider - first == pytest.approx(2 * (last - first), rel=1e-6)


def test_layers_that_predict_further_tokens_are_on_the_last_stage() -> None:
    plain = stages_of(pipeline(LLAMA, 2), IDEAL, 0.0, 1.0)
    more = stages_of(pipeline(replace(LLAMA, num_mtp_layers=1), 2), IDEAL, 0.0, 1.0)
    layer_s = plain[0] / (LLAMA.num_layers / 2)
    assert more[0] == pytest.approx(plain[0]) and more[1] - plain[1] >= 0.99 * layer_s


@pytest.mark.parametrize("coefficients", [REAL, IDEAL])
def test_more_layers_take_longer(coefficients: TimeCoefficients) -> None:
    models = [replace(LLAMA, num_layers=count) for count in (8, 16, 32, 64)]
    for rank in (0.0, 1.0):
        found = [stages_of(pipeline(model, 2), coefficients, rank, rank)[0] for model in models]
        assert found == sorted(found) and found[-1] > 4 * found[0] * 0.9


def test_time_grows_with_micro_batches_by_equal_steps_above_what_happens_once() -> None:
    batches = np.array([8, 16, 24])
    a = without_messages(case(LLAMA, "h100x8", **LAYOUT | {"gbs": batches}, tp=1, dp=8))
    one, two, three = stages_of(a, REAL, 0.0, 0.0, 0.0)
    assert two - one == pytest.approx(three - two)
    once = a.time(REAL).parts["optimizer"][0] + REAL.step_overhead_s
    assert once > 0 and one - (two - one) == pytest.approx(once)


def test_recomputation_takes_longer() -> None:
    kinds = np.array([0, RECOMPUTE_SELECTIVE, RECOMPUTE_UNIFORM])
    layout = LAYOUT | {"recompute": kinds, "recompute_layers": np.array([0, 0, 1])}
    none, selective, full = stages_of(case(LLAMA, "h100x8", **layout, tp=1, dp=8), REAL, 0.0, 0.0, 0.0)
    assert none < selective < full < 1.4 * none
