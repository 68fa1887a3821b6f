from __future__ import annotations

from typing import Any

import pytest

from tests.mentions import mentions
from tests.presets.accelerate.logs import epochs, pair, prepared, steps
from tests.presets.deepspeed.logs import TRAINER_END
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import OtherSettingsError
from zenith_tune.evaluators.hooked_run import HookedRun, RunAsked
from zenith_tune.presets.accelerate.evaluator import AccelerateEvaluator
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


def test_a_bar_of_what_a_program_loads_is_no_speed() -> None:
    log = "Loading checkpoint shards: 100%|###| 4/4 [00:05<00:00,  1.30s/it]\n"
    with pytest.raises(ValueError, match="no speed"):
        AccelerateEvaluator(check=False).measure(log, {})


def fault(log: str, **asked: Any) -> str | None:
    wanted = RunAsked(**{"num_processes": 2, "wrapper": "DistributedDataParallel", **asked})
    return HookedRun.read(log).fault(wanted)


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
    assert mentions(latency.describe(), "latency", "minimize") and latency.describe() != plain.describe()


def test_another_objective_compares_the_same_job() -> None:
    evaluator = AccelerateEvaluator(n_gpus=2)
    evaluator.asked = lambda params: RunAsked(num_processes=4, wrapper=None)
    with pytest.raises(ValueError, match=r"world of 2.* 4 processes"):
        evaluator.with_objective("latency").evaluate(pair() + steps(STEADY), {})


def test_the_trainers_own_figure_serves_where_no_step_was_seen() -> None:
    measured = AccelerateEvaluator(gbs=8, n_gpus=2).measure(pair() + TRAINER_END, {})
    assert measured.value > 0 and measured.extra["wrapper"] == "DistributedDataParallel"


def test_progress_is_reported_while_it_runs_only_if_it_is_what_was_asked_for() -> None:
    evaluator = AccelerateEvaluator(gbs=8, n_gpus=2)
    progress = evaluator.progress(pair() + steps(STEADY) + "half a li", {})
    assert progress is not None and list(progress.values) == pytest.approx([16, 16, 8 / 0.51, 8 / 0.49])
    assert evaluator.progress(prepared(processes=1) + steps(STEADY), {}) is None


def test_a_job_of_one_process_is_a_fault() -> None:
    alone = prepared(processes=1, wrapper="Gpt", type="NO")
    assert mentions(fault(alone), "2 processes") and "unrelated" not in str(fault(alone))


def test_unrelated_processes_are_a_fault() -> None:
    log = "".join(prepared(f"a:{number}", processes=1, wrapper="Gpt", type="NO") for number in (1, 2, 3))
    assert mentions(fault(log), "3 unrelated", 2)


def test_one_process_that_prepares_twice_is_still_one() -> None:
    twice = fault(prepared(processes=1) + prepared(processes=1))
    assert twice is not None and twice == fault(prepared(processes=1))


@pytest.mark.parametrize(
    ("wrapper", "asked", "named"),
    [
        ("Gpt", "DistributedDataParallel", ("unwrapped", "(Gpt)", "(DistributedDataParallel)")),
        ("DistributedDataParallel", "FSDPModule", ("(DistributedDataParallel)", "(FSDPModule)")),
        ("FullyShardedDataParallel", "FSDPModule", ("(FullyShardedDataParallel)", "(FSDPModule)")),
        ("DistributedDataParallel", "DeepSpeedEngine", ("(DistributedDataParallel)", "(DeepSpeedEngine)")),
        ("MegatronEngine", "MegatronEngine", None),
        ("Gpt", None, None),
    ],
)
def test_a_wrapper_that_was_not_asked_for_is_a_fault(wrapper: str, asked: str | None, named: Any) -> None:
    found = fault(pair(wrapper=wrapper), wrapper=asked)
    assert found is None if named is None else mentions(found, *named)


def test_one_rank_that_differs_is_enough() -> None:
    assert "unwrapped" in str(fault(prepared("a:1") + prepared("a:2", wrapper="Gpt")))
    assert mentions(fault(prepared("a:1") + prepared("a:2", processes=3)), "2 and 3")


def test_settings_that_did_not_arrive_are_a_fault() -> None:
    log = pair(settings={"zero_stage": 2, "reshard_after_forward": True})
    assert fault(log, settings={"zero_stage": 2, "reshard_after_forward": True, "unreported": 1}) is None
    assert "zero_stage 2" in str(fault(log, settings={"zero_stage": 3}))
    assert "reshard_after_forward True" in str(fault(log, settings={"reshard_after_forward": False}))


def test_a_batch_that_did_not_arrive_is_a_fault() -> None:
    log = pair() + steps(STEADY, passes=1)
    assert fault(log, micro_batch=4, passes=1) is None
    assert "micro-batch 8" in str(fault(log, micro_batch=8))
    assert "accelerator.accumulate" in str(fault(log, passes=2))
    assert fault(pair(batch_sizes=[]) + steps(STEADY, passes=0), micro_batch=8, passes=2) is None, "nobody knows"


def test_a_short_last_accumulation_of_an_epoch_is_no_fault_and_is_not_timed() -> None:
    log = pair() + epochs(of=[(2, 0.5), (2, 0.5), (1, 0.1)], num=4)
    assert fault(log, passes=2) is None
    seconds = [step_s for step_s, _ in HookedRun.read(log).timed]
    assert seconds == pytest.approx([0.5] * 7), "all but the first and the short ones"
    assert AccelerateEvaluator(gbs=8, n_gpus=2).measure(log, {}).value == pytest.approx(16)


def test_an_accumulation_that_is_short_elsewhere_is_reported_by_its_number() -> None:
    log = pair() + epochs(of=[(1, 0.5), (1, 0.5), (2, 0.5)], num=4)
    assert mentions(fault(log, passes=2), 1, 2)
    assert fault(log, passes=1) is None


def test_a_dataloader_that_ends_with_every_step_is_a_fault() -> None:
    log = pair() + epochs(of=[(3, 0.5)], num=6)
    assert mentions(fault(log, passes=4), 3, 4, "dataloader", "gbs")


def test_a_second_model_that_is_not_wrapped_does_not_hide_the_first() -> None:
    assert fault(pair() + pair(wrapper="Critic")) is None
    assert fault(pair(wrapper="Critic") + pair()) is None
    assert "unwrapped (Critic)" in str(fault(pair(wrapper="Gpt") + pair(wrapper="Critic")))


def test_a_job_that_reports_nothing_has_no_value_unless_nobody_asks() -> None:
    log = "{'train_samples_per_second': 5.0}\n"
    with pytest.raises(ValueError, match="check=false"):
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
        ({}, "n_gpus=8.*check=false"),
        ({"n_gpus": 2, "objective": "speed"}, "objective 'speed'"),
        ({"n_gpus": 2, "wrapper": "Ddp"}, "wrapper 'Ddp'"),
        ({"n_gpus": 0}, "n_gpus.* 0"),
    ],
)
def test_bad_arguments_are_one_line(args: dict[str, Any], part: str) -> None:
    with pytest.raises(UsageError, match=part):
        AccelerateEvaluator(**args)


def test_a_trial_that_ran_otherwise_is_told_from_a_log_without_a_value() -> None:
    evaluator = AccelerateEvaluator(gbs=8, n_gpus=2)
    evaluator.asked = lambda params: RunAsked(
        num_processes=2, wrapper=None, settings={"zero_stage": params.get("s", 2)}
    )
    log = pair(settings={"zero_stage": 2}) + steps(STEADY)
    assert evaluator.evaluate(log, {"parameters": {"s": 2}}) > 0
    with pytest.raises(OtherSettingsError):
        evaluator.evaluate(log, {"parameters": {"s": 3}})
    for text, params in ((steps(STEADY), {"s": 3}), (pair(processes=3) + steps(STEADY), {})):
        with pytest.raises(ValueError) as refused:
            evaluator.evaluate(text, {"parameters": params})
        assert not isinstance(refused.value, OtherSettingsError)


def test_the_lines_of_a_hook_have_the_speed() -> None:
    line = 'zenithtune: {{"event": "step", "step": {0}, "passes": 1, "seconds": {0}.5}}\n'
    assert AccelerateEvaluator(gbs=8, check=False).evaluate("".join(line.format(step) for step in (1, 2, 3)), {}) == 8.0
