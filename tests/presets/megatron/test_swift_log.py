from __future__ import annotations

import json

import pytest

from zenith_tune.presets.megatron.evaluator import MegatronEvaluator
from zenith_tune.presets.megatron.swift_log import read_swift_steps


def line(iteration: int, mean_s: float, elapsed: str = "", **more: float) -> str:
    minutes, seconds = divmod(round(iteration * mean_s), 60)
    fields = {
        "loss": 1.234,
        "grad_norm": 0.56,
        "learning_rate": 1e-05,
        **more,
        "iteration": f"{iteration}/100",
        "elapsed_time": elapsed or f"{minutes}m {seconds}s",
        "remaining_time": "7m 5s",
        "memory(GiB)": 41.2,
        "train_speed(s/it)": mean_s,
    }
    return f"{fields}\n"


# Five iterations in 50 s, then every five in 10 s.
LOG = line(5, 10.0, "50s") + line(10, 6.0, "1m 0s") + line(15, 70 / 15, "1m 10s") + line(20, 4.0, "1m 20s")


def test_the_time_of_an_interval_is_the_difference_of_the_means() -> None:
    lines = read_swift_steps(LOG)
    assert [found.number for found in lines] == [5, 10, 15, 20]
    assert [found.seconds for found in lines] == pytest.approx([10.0, 2.0, 2.0, 2.0])


def test_throughput_is_samples_per_second_where_the_batch_is_known_and_iterations_else() -> None:
    measurement = MegatronEvaluator(gbs=16).measure(LOG, {})
    assert measurement.value == pytest.approx(8.0)
    assert measurement.unit == "samples/s"
    assert measurement.step_s == pytest.approx(2.0)
    assert measurement.num_samples == 3
    assert measurement.peak_memory_bytes == round(41.2 * 2**30)
    measurement = MegatronEvaluator().measure(LOG, {})
    assert measurement.value == pytest.approx(0.5)
    assert measurement.unit == "iterations/s"


def test_a_single_line_gives_its_own_mean() -> None:
    measurement = MegatronEvaluator("step_time").measure(line(5, 4.612345), {})
    assert measurement.value == pytest.approx(4.612345)
    assert measurement.spread is None


def test_extra_fields_of_experts_and_noise_around_the_line_do_no_harm() -> None:
    first = "[default7]:" + line(5, 10.0, load_balancing_loss=1.01, z_loss=0.2)
    second = "Train:  10%|█         | 10/100 [01:00<09:00,  6.00s/it]" + line(10, 6.0, load_balancing_loss=1.0)
    assert MegatronEvaluator("step_time").evaluate(first + second, {}) == pytest.approx(2.0)


def test_json_lines_are_read_too() -> None:
    log = "".join(
        json.dumps({"loss": 1.0, "iteration": f"{n}/9", "train_speed(s/it)": 2.0}) + "\n" for n in range(1, 4)
    )
    assert MegatronEvaluator("step_time").evaluate(log, {}) == pytest.approx(2.0)


def test_the_time_of_an_evaluation_belongs_to_no_interval() -> None:
    evaluation = line(10, 16.0, "2m 40s").replace("'loss'", "'eval_loss'")
    log = line(5, 10.0, "50s") + line(10, 6.0, "1m 0s") + evaluation + line(15, 170 / 15, "2m 50s")
    assert [found.seconds for found in read_swift_steps(log)] == pytest.approx([10.0, 2.0, 2.0])


def test_a_resumed_run_counts_from_where_it_resumed() -> None:
    log = line(1005, 10.0, "50s") + line(1010, 6.0, "1m 0s") + line(1015, 70 / 15, "1m 10s")
    assert [found.seconds for found in read_swift_steps(log)] == pytest.approx([10.0, 2.0, 2.0], rel=0.05)


def test_an_elapsed_time_that_makes_no_sense_is_not_believed() -> None:
    assert [found.seconds for found in read_swift_steps(line(5, 2.0, "0s") + line(10, 2.0, "0s"))] == [2.0, 2.0]


def test_a_line_before_the_first_step_has_no_speed() -> None:
    assert [found.number for found in read_swift_steps(line(1, 0.0) + line(5, 2.0))] == [5]


def test_only_the_last_start_counts_after_a_restart() -> None:
    assert [found.number for found in read_swift_steps(line(5, 9.0) + line(10, 9.0) + line(5, 3.0))] == [5]


def test_nan_in_the_loss_is_a_failure() -> None:
    log = LOG + line(25, 3.6, "1m 30s").replace("1.234", "nan")
    with pytest.raises(ValueError, match=r"NaN.*iteration 25\b.*\bnan\b"):
        MegatronEvaluator().evaluate(log, {})


def test_a_torn_or_foreign_dictionary_is_passed_over() -> None:
    foreign = "{'loss': 1.0, 'epoch': 0.1, 'global_step/max_steps': '1/94', 'train_speed(iter/s)': 0.3}\n"
    assert read_swift_steps(foreign + line(5, 10.0)[:-40]) == []
