from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from zenith_tune.calibrate.calibration_file import default_calibration
from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.estimates.calibration import Calibration, TimeCalibration
from zenith_tune.estimates.memory_risk import slowdown
from zenith_tune.estimates.step import estimate
from zenith_tune.layouts.layout_batch import RECOMPUTE_NONE, RECOMPUTE_UNIFORM, LayoutBatch

MODEL, CLUSTER = load_model("llama3-8b"), load_cluster("h100x8")
JOB = JobSpec(seq_len=8192, framework=load_framework("megatron"))
LAYOUTS = LayoutBatch.of(tp=[1, 2, 4, 8], dp=[8, 4, 2, 1], mbs=[4, 1, 1, 1], gbs=64, zero=1, sequence_parallel=True)
GB = 1e9


@pytest.mark.parametrize("thrash", [2.0, 4.0, 5.0])
def test_a_step_thrashes_only_where_the_memory_is_all_but_full(thrash: float) -> None:
    used = np.array([0.0, 40.0, 68.0, 80.0, 88.0, 200.0]) * GB
    factors = slowdown(used, 80 * GB, thrash)
    assert factors[:3] == pytest.approx(1.0, abs=0.01)
    assert factors[4:] == pytest.approx(thrash, rel=0.01)
    assert (np.diff(factors) >= 0).all() and 0.9 * thrash < factors[3] < thrash


def test_a_run_at_the_brink_is_several_times_slower_as_measured() -> None:
    # Megatron-LM PR 6311: at 79.7 GB of 80 the rate fell from 225 to 33 TFLOP/s, so a step took 6.8 times as long.
    assert slowdown(np.array([79.7 * GB]), 80 * GB, 225 / 33)[0] == pytest.approx(225 / 33, rel=0.1)


def test_no_amount_of_memory_makes_a_number_that_is_none() -> None:
    factors = slowdown(np.array([0.0, 1e30]), 1.0, 4.0)
    assert factors.tolist() == [pytest.approx(1.0), pytest.approx(4.0)]


def test_the_parts_of_an_estimate_add_up_and_its_spread_is_the_calibrations() -> None:
    calibration = Calibration(time=TimeCalibration(interval=(-0.329, 0.329)))
    found = estimate(MODEL, CLUSTER, JOB, LAYOUTS, calibration)
    assert sum(found.time_parts.values()) == pytest.approx(found.step_s, rel=1e-12)
    assert (found.step_spread >= 0.2).all() and found.step_spread[0] == pytest.approx(0.2, rel=1e-3)
    assert found.step_spread[-1] > found.step_spread[0], "waiting is less certain than work"
    assert len(found) == 4


def test_what_does_not_fit_pays_for_the_want_of_memory() -> None:
    found = estimate(MODEL, CLUSTER, JOB, LAYOUTS, Calibration())
    full = found.memory_bytes > CLUSTER.gpu.memory_bytes
    share = found.time_parts["memory"] / found.step_s
    assert full[0] and not full[1:].any()
    assert share[0] > 0.5 and share[2:].max() < 0.01


def test_more_memory_is_never_slower() -> None:
    roomy = replace(CLUSTER, gpu=replace(CLUSTER.gpu, memory_bytes=4 * CLUSTER.gpu.memory_bytes))
    before, after = (estimate(MODEL, at, JOB, LAYOUTS, Calibration()).step_s for at in (CLUSTER, roomy))
    assert (after <= before).all() and after[0] < 0.5 * before[0]


def test_factors_of_the_gpu_count() -> None:
    slow = TimeCalibration(factors={"gpu:h100": {"gemm_efficiency": 0.5}})
    plain, slower = (
        estimate(MODEL, CLUSTER, JOB, LAYOUTS, Calibration(time=time)) for time in (TimeCalibration(), slow)
    )
    other = estimate(MODEL, load_cluster("a100x8"), JOB, LAYOUTS, Calibration(time=slow)).step_s
    assert (slower.step_s > 1.4 * plain.step_s).all()
    assert other == pytest.approx(estimate(MODEL, load_cluster("a100x8"), JOB, LAYOUTS, Calibration()).step_s)


def test_layouts_together_are_as_good_as_alone() -> None:
    together = estimate(MODEL, CLUSTER, JOB, LAYOUTS, Calibration())
    for i in range(4):
        alone = estimate(MODEL, CLUSTER, JOB, LAYOUTS.take(np.array([i])), Calibration())
        assert (alone.step_s[0], alone.memory_bytes[0]) == pytest.approx((together.step_s[i], together.memory_bytes[i]))


def test_what_is_frozen_has_no_gradient_and_no_update() -> None:
    """LoRA of Llama 3 8B, rank 16: 42M parameters trained of 8.03B."""
    job = JobSpec(seq_len=2048, framework=load_framework("hf-accelerate"))
    layouts = LayoutBatch.of(tp=1, dp=8, mbs=2, gbs=64, zero=0, recompute=[RECOMPUTE_NONE, RECOMPUTE_UNIFORM])
    whole = estimate(MODEL, CLUSTER, job, layouts, Calibration())
    part = estimate(replace(MODEL, trained_share=0.00522), CLUSTER, job, layouts, Calibration())
    states = (4 + 8) * MODEL.num_params * (1 - 0.00522)  # gradients and moments in fp32
    assert (whole.memory_bytes - part.memory_bytes > states).all()
    compute = part.time_parts["compute"] / whole.time_parts["compute"]
    assert ((compute > 0.6) & (compute < 0.8)).all(), "two products in place of three"
    assert part.time_parts["recompute"][1] == pytest.approx(whole.time_parts["recompute"][1], rel=0.1)
    assert (part.time_parts["optimizer"] < 0.01 * whole.time_parts["optimizer"]).all()
    assert (part.time_parts["dp"] < 0.2 * whole.time_parts["dp"]).all(), "little more than latency"


def test_a_first_micro_batch_of_each_shape_takes_the_host_longer() -> None:
    """Llama of 8 layers, checkpointed, micro-batch 1 (results/h200-loops-2026-11-17.csv): 0.47 and 1.63 s."""
    model = replace(MODEL, num_layers=8, hidden=2048, ffn_hidden=8192, num_heads=16, num_kv_heads=4, head_dim=128)
    job = JobSpec(seq_len=2048, framework=load_framework("hf-accelerate"))
    layouts = LayoutBatch.of(tp=1, dp=1, mbs=1, gbs=8, zero=0, recompute=RECOMPUTE_UNIFORM)
    calibration = default_calibration("hf-accelerate")
    at = load_cluster("h200x1")
    equal, varied = (
        estimate(replace(model, vocab=32000), at, replace(job, new_shapes=share), layouts, calibration)
        for share in (0.0, 1.0)
    )
    assert equal.step_s[0] == pytest.approx(0.47, rel=0.15)
    assert varied.step_s[0] == pytest.approx(1.63, rel=0.15)
    assert varied.step_spread[0] > equal.step_spread[0]
