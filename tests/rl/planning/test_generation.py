"""How many answers an engine has in flight, and how long it decodes them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from zenith_rl.planning.generation import Engine, GenerationWork, _in_flight, engine_sizes
from zenith_rl.planning.lengths import AnswerLengths
from zenith_tune.calibrate.calibration_file import default_calibration
from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.estimates.workload import FloatArray
from zenith_tune.units import GIB

LENGTHS = AnswerLengths(limit=4096, p50=900, p99=3500)
WORK = GenerationWork(prompts=64, group=8, prompt_len=512, lengths=LENGTHS)


def engine(tp: int = 1, model: str = "qwen2.5-7b", precision: str = "bf16") -> Engine:
    cluster = load_cluster("h100x8")
    time = default_calibration("megatron").time
    coefficients = time.coefficients_for(gpu="h100", precision="bf16", framework="megatron")
    return Engine(
        model=load_model(model), cluster=cluster, coefficients=coefficients, tp=tp, precision=precision
    )  # fmt: skip


def one_by_one(lengths: FloatArray, places: int, prompt: int) -> tuple[list[int], list[int]]:
    """Return the answers in flight and their tokens after each step of an engine that is stepped through."""
    waiting, running = [int(length) for length in lengths], list[list[int]]()
    active, context = list[int](), list[int]()
    while waiting or running:
        while waiting and len(running) < places:
            running.append([0, waiting.pop(0)])
        active.append(len(running))
        context.append(sum(prompt + done for done, _ in running))
        for answer in running:
            answer[0] += 1
        running = [answer for answer in running if answer[0] < answer[1]]
    return active, context


@pytest.mark.parametrize("places", [1, 3, 8, 40])
def test_answers_in_flight_are_those_of_an_engine_that_is_stepped_through(places: int) -> None:
    lengths = np.array([5.0, 30, 12, 7, 7, 19, 2, 25, 11, 3])
    steps, active, context = _in_flight(lengths, places, prompt_len=4)
    expected_active, expected_context = one_by_one(lengths, places, prompt=4)
    assert np.sum(steps) == len(expected_active)
    assert np.repeat(active, steps.astype(int)).tolist() == expected_active
    # The mean of a span stands for its steps, half a token of each answer later.
    assert np.sum(context * steps) == pytest.approx(sum(expected_context) + lengths.sum() / 2)


def test_a_step_reads_all_weights_once_and_the_caches_of_all_answers() -> None:
    alone, none = engine().step_s(np.array([1.0, 1.0]), np.array([0.0, 100_000.0]))
    memory = 3.35e12 * engine().coefficients.memory_efficiency
    weights = 2 * (load_model("qwen2.5-7b").num_params - load_model("qwen2.5-7b").embedding_params) / memory
    assert weights < alone < 1.5 * weights
    # 28 layers with 4 heads of 128 for keys and for values, two bytes each
    assert none - alone == pytest.approx(100_000 * 28 * 2 * 4 * 128 * 2 / memory)


def test_few_answers_read_few_experts() -> None:
    step_s = engine(tp=4, model="qwen3-30b-a3b").step_s(np.array([1.0, 4.0, 64.0]), np.zeros(3))
    assert step_s[0] < step_s[1] < step_s[2] < 4 * step_s[0]


def test_a_latent_cache_is_whole_on_every_gpu() -> None:
    one, two = (replace(engine(model="deepseek-v2-lite"), tp=tp).cache_bytes for tp in (1, 2))
    assert one == two == 2 * 27 * (512 + 64)
    assert engine(tp=2).cache_bytes == engine().cache_bytes / 2 == engine(tp=8).cache_bytes * 2  # it has four heads


def test_less_memory_means_fewer_at_once_and_more_time() -> None:
    much, little = (engine().generate(WORK, 1, memory * GIB) for memory in (70, 24))
    assert much is not None and little is not None
    assert much.sequences > 4 * little.sequences and much.seconds < little.seconds
    assert engine().generate(WORK, 1, 18 * GIB) is None  # the longest answer has no room


def test_answers_that_may_begin_early_fill_the_places_of_those_that_ended() -> None:
    whole, ahead = (engine().generate(WORK, 8, 70 * GIB, number) for number in (1, 4))
    assert whole is not None and ahead is not None
    assert ahead.seconds < 0.7 * whole.seconds and ahead.tail_s < whole.tail_s / 2


def test_weights_in_eight_bits_are_half_as_large_and_read_faster() -> None:
    wide, narrow = engine(), engine(precision="fp8")
    assert narrow.weight_bytes == wide.weight_bytes / 2
    assert narrow.step_s(np.ones(1), np.zeros(1)) < 0.7 * wide.step_s(np.ones(1), np.zeros(1))


def test_sizes_of_engines_divide_gpus_and_heads() -> None:
    assert list(engine_sizes(load_model("qwen2.5-7b"), 8)) == [1, 2, 4]  # 28 heads
    assert list(engine_sizes(load_model("llama3-8b"), 12)) == [1, 2, 4]
