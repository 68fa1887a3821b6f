from __future__ import annotations

from typing import Any

import pytest

from tests.presets.accelerate.logs import epochs, pair, prepared, steps
from tests.presets.deepspeed.logs import TRAINER_END
from zenith_tune.errors import UsageError
from zenith_tune.presets.accelerate.evaluator import AccelerateEvaluator, AccelerateRun, RunAsked
from zenith_tune.study.parameters import Direction
from zenith_tune.testing import EvaluatorContract

STEADY = [2.0, 0.5, 0.5, 0.51, 0.49]


class TestContract(EvaluatorContract):
    def make(self) -> AccelerateEvaluator:
        return AccelerateEvaluator(gbs=8, n_gpus=2)

    def good_log(self) -> str:
        return pair() + steps(STEADY)

    def bad_logs(self) -> list[str]:
        return [*super().bad_logs(), pair(), steps(STEADY), pair() + steps([])]


class TestLatencyContract(TestContract):
    def make(self) -> AccelerateEvaluator:
        return AccelerateEvaluator("latency", n_gpus=2)


def fault(log: str, **asked: Any) -> str | None:
    wanted = RunAsked(**{"num_processes": 2, "wrapper": "DistributedDataParallel", **asked})
    return AccelerateRun.read(log).fault(wanted)


def test_the_speed_is_that_of_steady_steps_with_its_spread_and_peak_memory() -> None:
    log = pair() + "noise\n" + steps(STEADY, peak_bytes=5 * 2**30)
    measured = AccelerateEvaluator(gbs=8, n_gpus=2).measure(log, {})
    assert (measured.value, measured.unit, measured.num_samples) == (16.0, "samples/s", 4)
    assert measured.step_s == pytest.approx(0.5) and measured.peak_memory_bytes == 5 * 2**30
    assert measured.extra == {"accelerate": "1.15.0", "wrapper": "DistributedDataParallel"}


def test_objectives_and_units() -> None:
    log = pair() + steps(STEADY)
    plain = AccelerateEvaluator(n_gpus=2)
    assert plain.measure(log, {}).unit == "steps/s" and plain.evaluate(log, {}) == pytest.approx(2.0)
    latency = plain.with_objective("latency")
    assert latency.evaluate(log, {}) == pytest.approx(0.5) and latency.direction is Direction.MINIMIZE
    assert latency.describe() == "accelerate latency, minimize"


def test_another_objective_compares_the_same_job() -> None:
    evaluator = AccelerateEvaluator(n_gpus=2)
    evaluator.asked = lambda params: RunAsked(num_processes=4, wrapper=None)
    with pytest.raises(ValueError, match=r"world of 2.* 4 processes"):
        evaluator.with_objective("latency").evaluate(pair() + steps(STEADY), {})


def test_the_trainers_own_figure_serves_where_no_step_was_seen() -> None:
    measured = AccelerateEvaluator(gbs=8, n_gpus=2).measure(pair() + TRAINER_END, {})
    assert measured.value > 0 and measured.extra["wrapper"] == "DistributedDataParallel"


def test_what_runs_is_told_while_it_runs_only_if_it_is_what_was_asked_for() -> None:
    evaluator = AccelerateEvaluator(gbs=8, n_gpus=2)
    progress = evaluator.progress(pair() + steps(STEADY) + "half a li", {})
    assert progress is not None and list(progress.values) == pytest.approx([16, 16, 8 / 0.51, 8 / 0.49])
    assert evaluator.progress(prepared(processes=1) + steps(STEADY), {}) is None


def test_a_job_of_one_process_is_told() -> None:
    alone = prepared(processes=1, wrapper="Gpt", type="NO")
    assert fault(alone) == "the job ran as one process, where one job of 2 processes was asked for"


def test_unrelated_processes_are_told() -> None:
    log = pair(processes=1, wrapper="Gpt", type="NO")
    problem = "the job ran as 2 unrelated processes, each a world of its own"
    assert fault(log) == f"{problem}, where one job of 2 processes was asked for"


def test_one_process_that_prepares_twice_is_still_one() -> None:
    assert "ran as one process" in str(fault(prepared(processes=1) + prepared(processes=1)))


@pytest.mark.parametrize(
    ("wrapper", "asked", "told"),
    [
        ("Gpt", "DistributedDataParallel", "the model was left unwrapped (Gpt), where plain data parallelism"),
        (
            "DistributedDataParallel",
            "FSDPModule",
            "ran with plain data parallelism (DistributedDataParallel), where FSDP",
        ),
        ("FullyShardedDataParallel", "FSDPModule", "ran with FSDP version 1"),
        ("DistributedDataParallel", "DeepSpeedEngine", "where DeepSpeed (DeepSpeedEngine) was asked for"),
        ("MegatronEngine", "MegatronEngine", None),
        ("Gpt", None, None),
    ],
)
def test_a_wrapper_that_was_not_asked_for_is_told(wrapper: str, asked: str | None, told: str | None) -> None:
    found = fault(pair(wrapper=wrapper), wrapper=asked)
    assert found is None if told is None else told in str(found)


def test_one_rank_that_differs_is_enough() -> None:
    assert "unwrapped" in str(fault(prepared("a:1") + prepared("a:2", wrapper="Gpt")))
    assert "world of 2 and 3" in str(fault(prepared("a:1") + prepared("a:2", processes=3)))


def test_settings_that_did_not_arrive_are_told() -> None:
    log = pair(settings={"zero_stage": 2, "reshard_after_forward": True})
    assert fault(log, settings={"zero_stage": 2, "reshard_after_forward": True, "unreported": 1}) is None
    assert "zero_stage 2" in str(fault(log, settings={"zero_stage": 3}))
    assert "reshard_after_forward True" in str(fault(log, settings={"reshard_after_forward": False}))


def test_a_batch_that_did_not_arrive_is_told() -> None:
    log = pair() + steps(STEADY, passes=1)
    assert fault(log, micro_batch=4, passes=1) is None
    assert "micro-batch 8" in str(fault(log, micro_batch=8))
    assert "accelerator.accumulate" in str(fault(log, passes=2))
    assert fault(pair(batch_sizes=[]) + steps(STEADY, passes=0), micro_batch=8, passes=2) is None, "nobody knows"


def test_a_short_last_accumulation_of_an_epoch_is_no_fault_and_is_not_timed() -> None:
    log = pair() + epochs(of=[(2, 0.5), (2, 0.5), (1, 0.1)], num=4)
    assert fault(log, passes=2) is None
    assert AccelerateRun.read(log).seconds == pytest.approx([0.5] * 7), "all but the first and the short ones"
    assert AccelerateEvaluator(gbs=8, n_gpus=2).measure(log, {}).value == pytest.approx(16)


def test_an_accumulation_that_is_short_elsewhere_is_told_by_its_number() -> None:
    log = pair() + epochs(of=[(1, 0.5), (1, 0.5), (2, 0.5)], num=4)
    assert "1 backward pass, where 2" in str(fault(log, passes=2))
    assert fault(log, passes=1) is None


def test_a_dataloader_that_ends_with_every_step_is_told() -> None:
    log = pair() + epochs(of=[(3, 0.5)], num=6)
    assert "3 backward passes, where 4" in str(fault(log, passes=4))


def test_a_second_model_that_is_not_wrapped_does_not_hide_the_first() -> None:
    assert fault(pair() + pair(wrapper="Critic")) is None
    assert fault(pair(wrapper="Critic") + pair()) is None
    assert "unwrapped (Critic)" in str(fault(pair(wrapper="Gpt") + pair(wrapper="Critic")))


def test_a_job_that_tells_nothing_has_no_value_unless_nobody_asks() -> None:
    log = "{'train_samples_per_second': 5.0}\n"
    with pytest.raises(ValueError, match="nobody knows what it ran as"):
        AccelerateEvaluator(gbs=8, n_gpus=2).evaluate(log, {})
    assert AccelerateEvaluator(gbs=8, check=False).evaluate(log, {}) == 5.0


def test_of_programs_that_run_in_turn_the_last_one_counts() -> None:
    log = pair() + steps([9.0] * 8) + steps(STEADY)
    assert AccelerateEvaluator(gbs=8, n_gpus=2).evaluate(log, {}) == 16.0


def test_lines_of_strangers_are_passed_over() -> None:
    torn = (
        'zenithtune-accelerate: {"event": "step"\nzenithtune-accelerate: [1]\nzenithtune-accelerate: {"step": true}\n'
    )
    assert AccelerateEvaluator(gbs=8, n_gpus=2).evaluate(torn + pair() + f"[rank0]: {steps(STEADY)}", {}) == 16.0


@pytest.mark.parametrize(
    ("args", "part"),
    [
        ({}, "has none: give n_gpus=8, or check=false"),
        ({"n_gpus": 2, "objective": "speed"}, "unknown objective"),
        ({"n_gpus": 2, "wrapper": "Ddp"}, "unknown wrapper"),
        ({"n_gpus": 0}, "n_gpus must be above 0"),
    ],
)
def test_bad_arguments_are_one_line(args: dict[str, Any], part: str) -> None:
    with pytest.raises(UsageError, match=part):
        AccelerateEvaluator(**args)
