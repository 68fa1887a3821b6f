from __future__ import annotations

import re

import pytest

from tests.strategies.zero_progressive.subjects import subject
from zenith_tune.strategies.zero_progressive.feasibility import HALF, SINGLE, ZeroSetting, state_bytes, why_too_large
from zenith_tune.units import GIB

P, N = 1_000_000_000, 4


def setting(stage: int, **others: int | bool | None) -> ZeroSetting:
    plain = {"stage": stage, "num_ranks": N, "num_params": P, "reduce_bucket_size": 1, **others}
    return ZeroSetting(**plain)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("precision", "stage", "parts"),
    [
        (HALF, 0, (2, 2, 16)),
        (HALF, 1, (2, 2, 4)),
        (HALF, 2, (2, 0.5, 4)),
        (HALF, 3, (0.5, 0.5, 4)),
        (SINGLE, 0, (4, 4, 8)),
        (SINGLE, 1, (4, 4, 2)),
        (SINGLE, 2, (4, 1, 2)),
        (SINGLE, 3, (1, 1, 2)),
    ],
)
def test_bytes_per_parameter_by_precision_and_stage(precision: int, stage: int, parts: tuple[float, ...]) -> None:
    states = state_bytes(setting(stage, precision_bytes=precision))
    assert (states.weights / P, states.gradients / P, states.optimizer / P) == parts


def test_seven_and_a_half_billion_on_64_gpus_match_the_figure_of_the_zero_paper() -> None:
    # Figure 1 of arXiv 1910.02054 has 120, 31.4, 16.6 and 1.9 GB with 12 bytes of optimizer states; ours are 16.
    def paper_bytes(stage: int) -> float:
        states = state_bytes(ZeroSetting(stage=stage, num_ranks=64, num_params=7_500_000_000))
        return (states.weights + states.gradients + states.optimizer * 12 / 16) / 1e9

    assert [paper_bytes(stage) for stage in range(4)] == pytest.approx([120, 31.4, 16.6, 1.9], rel=0.02)


def test_gradients_accumulated_in_fp32_take_four_bytes() -> None:
    assert state_bytes(setting(0, gradient_bytes=4)).gradients == 4 * P


def test_an_offloaded_optimizer_takes_nothing_and_from_stage_2_on_neither_do_gradients() -> None:
    assert [state_bytes(setting(stage, offload_optimizer=True)).optimizer for stage in (1, 2, 3)] == [0, 0, 0]
    assert [state_bytes(setting(stage, offload_optimizer=True)).gradients for stage in (1, 2)] == [2 * P, 0]
    assert state_bytes(setting(0, offload_optimizer=True)).optimizer == 16 * P


def test_weights_are_offloaded_at_stage_3_alone() -> None:
    assert state_bytes(setting(3, offload_param=True)).weights == 0
    assert state_bytes(setting(2, offload_param=True)).weights == 2 * P


def test_buckets_count_twice_where_communication_overlaps() -> None:
    def buffers(stage: int, overlap: bool | None, contiguous: bool = True) -> float:
        bucket = setting(stage, reduce_bucket_size=100, overlap_comm=overlap, contiguous_gradients=contiguous)
        return state_bytes(bucket).buffers

    assert buffers(0, True) == 0
    assert buffers(2, False) == 200
    assert buffers(2, True) == 400
    assert buffers(2, True, contiguous=False) == 200
    assert buffers(2, None) == 200


def test_stage_3_gathers_no_more_weights_than_may_live_at_once() -> None:
    few = setting(3, reduce_bucket_size=0, max_live_parameters=1000, prefetch_bucket_size=500)
    many = setting(3, reduce_bucket_size=0, max_live_parameters=10 * P)
    assert state_bytes(few).buffers == 2 * 1500
    assert state_bytes(many).buffers == 2 * P


def test_the_sum_is_shown_with_its_arithmetic() -> None:
    why = why_too_large(subject(), {"stage": 2, "mbs": 1, "reduce_bucket_size": 2**29}, 100 * GIB, "measured as")
    assert why is not None
    states, activations, buffers = why.split("; ")
    assert all(part in states for part in ("8.03e9", "(2 + 2/8 + 16/8)", "stage 2"))
    assert "100.0 GiB" in activations and "1.0 GiB" in buffers


def test_what_is_in_host_memory_is_said() -> None:
    arithmetic = state_bytes(setting(3, offload_optimizer=True, offload_param=True)).arithmetic
    assert re.search(r"optimizer .*weights .*host memory$", arithmetic)
