"""Legend: b micro-batch, s sequence, h hidden size, l layers, V words, as in Narayanan et al. 2021 (2104.04473)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.estimates.time_cases import GPT3, IDEAL, case
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.estimates.compute import attention_time, head_time, layer_time
from zenith_tune.estimates.workload import Workload

B, S, H, L, V = 4, 2048, 12288, 96, 51200


def test_a_layer_of_gpt3_has_the_operations_of_narayanan_2021_with_half_of_the_scores() -> None:
    # Appendix: 24*b*s*h^2 + 4*b*s^2*h forward, backward twice that. A causal kernel computes half of the scores.
    at = case(GPT3, "a100x8", mbs=B)
    time = layer_time(at.workload, at.machine, at.layouts, IDEAL)
    expected = 3 * (24 * B * S * H**2 + 2 * B * S**2 * H)
    assert time.dense_s[0] * 312e12 == pytest.approx(expected, rel=1e-6)


def test_the_whole_of_gpt3_has_the_operations_of_narayanan_2021_equation_3() -> None:
    # Equation 3 without recomputation: 72*B*s*l*h^2*(1 + s/6h + V/12lh); of s/6h a causal kernel does half.
    at = case(GPT3, "a100x8", mbs=B)
    args = (at.workload, at.machine, at.layouts, IDEAL)
    flops = (L * layer_time(*args).dense_s[0] + head_time(*args)[0]) * 312e12
    assert flops == pytest.approx(72 * B * S * L * H**2 * (1 + S / (12 * H) + V / (12 * L * H)), rel=1e-6)


@pytest.mark.parametrize(("tp", "cp"), [(2, 1), (8, 1), (1, 4), (4, 2)])
def test_tensor_and_context_parallelism_divide_the_operations(tp: int, cp: int) -> None:
    whole, split = case(GPT3, "a100x8", mbs=B), case(GPT3, "a100x8", mbs=B, tp=tp, cp=cp)
    (layer, head), (layer_share, head_share) = (
        (layer_time(*at).dense_s[0], head_time(*at)[0])
        for at in ((each.workload, each.machine, each.layouts, IDEAL) for each in (whole, split))
    )
    assert (layer_share, head_share) == pytest.approx((layer / (tp * cp), head / (tp * cp)))


def test_unfused_attention_moves_twenty_bytes_for_every_score() -> None:
    real = replace(IDEAL, memory_efficiency=0.5)
    fused, unfused = (case(GPT3, "a100x8", mbs=B, tp=8, flash_attention=flash) for flash in (True, False))
    seconds = [attention_time(at.workload, at.machine, at.layouts, real)[0] for at in (fused, unfused)]
    bandwidth = 0.5 * fused.machine.memory_bytes_per_s
    assert seconds[1] - seconds[0] == pytest.approx(20 * B * S**2 * 96 / 8 / bandwidth)


def test_weights_are_read_and_gradients_added_once_per_micro_batch_whatever_its_size() -> None:
    real = replace(IDEAL, memory_efficiency=1.0)
    at = case(GPT3, "a100x8", mbs=[1, 2])
    one, two = layer_time(at.workload, at.machine, at.layouts, real).dense_s
    assert 2 * one - two == pytest.approx(12 * H**2 * 14 / at.machine.memory_bytes_per_s)


def test_sequence_parallelism_splits_the_norms_and_nothing_else() -> None:
    real = replace(IDEAL, memory_efficiency=1.0, hidden_passes=30.0)
    at = case(GPT3, "a100x8", mbs=B, tp=8, sequence_parallel=[False, True])
    whole, split = layer_time(at.workload, at.machine, at.layouts, real).dense_s
    norms = B * S * H * 30 / at.machine.memory_bytes_per_s
    assert whole - split == pytest.approx(norms * 7 / 8)


@pytest.mark.parametrize(("precision", "cast"), [("fp8", 4), ("float8 rowwise", 6), ("mxfp8", 4)])
def test_eight_bits_cost_casts_of_inputs_and_of_gradients(precision: str, cast: int) -> None:
    # A Llama-3 8B layer with tensor parallelism over 2: the inputs of qkv and fc1 and the gradients of o and fc2 are of
    # the hidden size, with sequence parallelism on half of the tokens; the other ends of these products are split.
    real = replace(IDEAL, memory_efficiency=1.0)
    at = case(load_model("llama3-8b"), "h100x8", mbs=B, tp=2, sequence_parallel=True)
    job = JobSpec(seq_len=S, framework=at.framework, precision=precision)
    narrow = Workload.of(load_model("llama3-8b"), job)
    seconds, free = (layer_time(each, at.machine, at.layouts, real).dense_s[0] for each in (narrow, at.workload))
    numbers = B * S / 2 * (4 * 4096 + 4096 + 2 * 1024 + 4096 + 3 * 14336)
    assert seconds - free == pytest.approx(numbers * cast / at.machine.memory_bytes_per_s)


def test_queries_and_keys_are_passed_over_by_their_own_widths() -> None:
    model = load_model("llama3-8b")
    plain = replace(IDEAL, memory_efficiency=1.0)
    at = case(model, "h100x8", mbs=B, tp=2)
    less, more = (
        layer_time(at.workload, at.machine, at.layouts, each).dense_s[0]
        for each in (plain, replace(plain, query_passes=9))
    )
    assert more - less == pytest.approx(B * S * (4096 + 1024) / 2 * 9 / at.machine.memory_bytes_per_s)


def test_a_token_of_mixtral_passes_two_experts_of_eight() -> None:
    model = load_model("mixtral-8x7b")
    at = case(model, "h100x8", mbs=1, tp=2, ep=[1, 4])
    time = layer_time(at.workload, at.machine, at.layouts, IDEAL)
    expert = 3 * 4096 * 14336
    scores = 6 * 2048**2 * 4096  # causal: half of 12*s^2*h, forward and backward
    flops = (6 * 2048 * (model.attention_params + 2 * expert) + scores) / 2
    assert time.expert_s * at.machine.matrix_flops == pytest.approx(flops, rel=1e-6)


def test_expert_parallelism_leaves_fewer_weights_to_read() -> None:
    # With products that cost nothing, all that is left is reading weights and adding up gradients: 14 bytes each.
    real = replace(IDEAL, memory_efficiency=1.0, expert_efficiency=1e9)
    at = case(load_model("mixtral-8x7b"), "h100x8", mbs=1, ep=[1, 4])
    alone, spread = layer_time(at.workload, at.machine, at.layouts, real).expert_s
    gone = 6 * 3 * 4096 * 14336
    assert alone - spread == pytest.approx(gone * 14 / at.machine.memory_bytes_per_s, rel=1e-6)
    # The product of one expert runs while the next one's weights are read: both together take less than their sum.
    both = layer_time(at.workload, at.machine, at.layouts, replace(real, expert_efficiency=1.0)).expert_s[0]
    product = layer_time(at.workload, at.machine, at.layouts, IDEAL).expert_s[0]
    assert max(alone, product) < both < alone + product


def test_latent_attention_counts_its_own_widths() -> None:
    # DeepSeek-V3: 128 heads of 128+64 for queries and keys, 128 for values (2412.19437, section 4.2).
    at = case(load_model("deepseek-v3"), "h100x8", seq_len=4096, mbs=1)
    seconds = attention_time(at.workload, at.machine, at.layouts, IDEAL)[0]
    assert seconds * at.machine.attention_flops == pytest.approx(3 * 4096**2 * 128 * (192 + 128))
