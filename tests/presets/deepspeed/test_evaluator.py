from __future__ import annotations

import pytest

from tests.mentions import mentions
from tests.presets.deepspeed.logs import TRAINER_END, bar, speed_line, speed_log, timer_lines
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.early_stop import EarlyStop, Stakes
from zenith_tune.presets.deepspeed.evaluator import DeepSpeedEvaluator
from zenith_tune.study.parameters import Direction
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.testing import EvaluatorContract
from zenith_tune.units import GIB

STEADY = [20.0, 31.6, 32.0, 32.3, 31.7, 32.0]


class TestContract(EvaluatorContract):
    def make(self) -> DeepSpeedEvaluator:
        return DeepSpeedEvaluator(gbs=16)

    def good_log(self) -> str:
        return speed_log(STEADY)


class TestTimersContract(EvaluatorContract):
    def make(self) -> DeepSpeedEvaluator:
        return DeepSpeedEvaluator("latency", gbs=16)

    def good_log(self) -> str:
        return "".join(timer_lines(seconds) for seconds in (2.0, 0.5, 0.51, 0.49)) + TRAINER_END


def test_the_speed_is_that_of_steady_steps_with_its_spread_and_peak_memory() -> None:
    measured = DeepSpeedEvaluator(gbs=16).measure(speed_log(STEADY) + speed_line(9, 32.0, peak_gb=3.5), {})
    assert measured.value == 32.0 and measured.unit == "samples/s"
    assert measured.num_samples == 6 and measured.spread is not None and 0 < measured.spread < 0.01
    assert measured.step_s == 0.5
    assert measured.peak_memory_bytes == round(3.5 * GIB)


def test_the_line_of_every_rank_counts_once_and_one_that_comes_late_is_no_new_run() -> None:
    one = DeepSpeedEvaluator().measure(speed_log(STEADY), {})
    assert DeepSpeedEvaluator().measure(speed_log(STEADY, ranks=4), {}) == one
    assert DeepSpeedEvaluator().measure(speed_log(STEADY) + speed_log(STEADY), {}) == one


def test_the_line_of_older_releases_is_read_too() -> None:
    log = "".join(f"[INFO] [timer.py:154:stop] 0/{step}, SamplesPerSec={40 + step / 10}\n" for step in (10, 20, 30))
    assert DeepSpeedEvaluator().evaluate(log, {}) == 42.5


def test_the_running_average_is_not_taken_for_the_speed_of_a_step() -> None:
    assert DeepSpeedEvaluator().evaluate(speed_line(5, 40.0), {}) == 40.0


def test_step_timers_are_of_whole_steps_and_micro_batches_do_not_count() -> None:
    log = "".join(timer_lines(seconds) for seconds in (2.0, 0.5, 0.5, 0.5))
    measured = DeepSpeedEvaluator(gbs=16).measure(log, {})
    assert measured.value == pytest.approx(32.0) and measured.num_samples == 3
    assert measured.step_s == pytest.approx(0.5)
    assert measured.extra["speed_read_from"] == "DeepSpeed's step timers"


def test_timers_of_older_releases_have_longer_names() -> None:
    line = "[Rank 0] time (ms) | forward: 100.00 | backward: 300.00 | backward_inner: 1.0 | step: 100.00\n"
    assert DeepSpeedEvaluator("latency").evaluate(line * 3, {}) == pytest.approx(0.5)


def test_throughput_lines_go_before_timers_and_timers_before_the_trainers_figure() -> None:
    timers = "".join(timer_lines(0.5) for _ in range(4))
    both = DeepSpeedEvaluator(gbs=16).measure(timers + TRAINER_END, {})
    assert both.value == pytest.approx(32.0) and both.extra["train_samples_per_second"] == 51.2
    assert DeepSpeedEvaluator(gbs=16).evaluate(speed_log([40.0] * 4) + timers, {}) == 40.0


@pytest.mark.parametrize(
    "end",
    [
        TRAINER_END,
        "{'train_runtime': '12.5', 'train_samples_per_second': '51.2', 'train_loss': '2.1'}\n",
        "***** train metrics *****\n  train_loss               =     2.1\n  train_samples_per_second =     51.2\n",
    ],
)
def test_the_trainers_figure_serves_where_there_is_no_other_in_each_of_its_spellings(end: str) -> None:
    measured = DeepSpeedEvaluator().measure(f"{{'loss': 1.5, 'grad_norm': 0.7, 'epoch': 0.1}}\n{end}", {})
    assert (measured.value, measured.spread, measured.num_samples) == (51.2, None, 1)


def test_the_longest_progress_bar_is_that_of_training() -> None:
    loading = "".join(bar(done, 4, "00:01", "4.00it/s", "Loading checkpoint shards:") for done in (1, 2, 3, 4))
    training = bar(1, 50, "00:04", "4.00s/it") + "".join(
        bar(done, 50, f"00:{4 + done:02d}", "2.00it/s") for done in range(2, 12)
    )
    evaluation = bar(1, 8, "00:00", "9.00it/s")
    measured = DeepSpeedEvaluator(gbs=16).measure(loading + training + evaluation, {})
    assert measured.value == pytest.approx(32.0) and measured.num_samples == 10


def test_latency_is_seconds_per_step_and_is_minimised() -> None:
    evaluator = DeepSpeedEvaluator("latency", gbs=16)
    assert evaluator.direction is Direction.MINIMIZE
    assert evaluator.measure(speed_log(STEADY), {}).unit == "s"
    assert evaluator.evaluate(speed_log([32.0] * 4), {}) == 0.5
    assert evaluator.direction.better(evaluator.evaluate(speed_log([64.0] * 4), {}), than=0.5)


def test_flops_are_per_gpu() -> None:
    evaluator = DeepSpeedEvaluator("flops", gbs=16, n_gpus=8, flops_per_sample=2e12)
    measured = evaluator.measure(speed_log([32.0] * 4), {})
    assert (measured.value, measured.unit) == (8.0, "TFLOP/s/GPU")
    with pytest.raises(UsageError, match=r"flops_per_sample.*n_gpus"):
        DeepSpeedEvaluator("flops")


def test_another_objective_of_the_same_job_may_be_asked_for() -> None:
    evaluator = DeepSpeedEvaluator(gbs=16).with_objective("latency")
    assert evaluator.evaluate(speed_log([32.0] * 4), {}) == 0.5
    with pytest.raises(UsageError, match="objective 'speed'"):
        evaluator.with_objective("speed")


def test_without_the_batch_timers_give_no_throughput() -> None:
    with pytest.raises(ValueError, match="gbs"):
        DeepSpeedEvaluator().evaluate(timer_lines(0.5) * 3, {})


@pytest.mark.parametrize("loss", ["nan", "'nan'", "inf"])
def test_a_loss_that_is_no_number_is_no_value(loss: str) -> None:
    with pytest.raises(ValueError, match="NaN"):
        DeepSpeedEvaluator(gbs=16).evaluate(f"{{'loss': {loss}, 'epoch': 0.1}}\n" + speed_log(STEADY), {})


def test_a_run_whose_every_step_is_skipped_is_no_value() -> None:
    line = "[Rank 0] step={0}, skipped={1}, lr=[0.1], mom=[[0.9, 0.99]]\n"
    with pytest.raises(ValueError, match=r"9 .*skipped"):
        DeepSpeedEvaluator().evaluate(speed_log(STEADY) + line.format(9, 9), {})
    assert DeepSpeedEvaluator().evaluate(speed_log(STEADY) + line.format(9, 2), {}) == 32.0


def test_a_job_that_came_apart_into_single_ranks_is_no_value() -> None:
    said = "[INFO] [config.py:680:print]   world_size ................... 1\n"
    with pytest.raises(ValueError, match=r"1 rank.* 8"):
        DeepSpeedEvaluator(n_gpus=8).evaluate(said + speed_log(STEADY), {})
    for ranks in (4, 8):  # of eight GPUs, two may share a model
        assert DeepSpeedEvaluator(n_gpus=8).evaluate(said.replace(" 1\n", f" {ranks}\n") + speed_log(STEADY), {})


def test_a_log_without_speed_says_what_to_switch_on() -> None:
    with pytest.raises(ValueError, match="wall_clock_breakdown"):
        DeepSpeedEvaluator().evaluate("0 errors so far\n", {})


def test_progress_ends_a_trial_that_is_behind_and_not_on_half_a_line() -> None:
    evaluator = DeepSpeedEvaluator(gbs=16)
    log = speed_log([20.0, *[31.9, 32.0, 32.1] * 8])
    progress = evaluator.progress(log + speed_line(99, 1.0)[:-20], {})
    assert progress is not None and len(progress.values) == 24 and progress.num_iterations == 25
    best = Trial(params={}, outcome=Outcome.OK, value=64.0, unit=progress.unit)
    judgement = EarlyStop().judge(progress, evaluator.direction, Stakes(best=best))
    assert judgement.ends and judgement.reason.startswith("behind ")
    assert evaluator.progress(TRAINER_END, {}) is None
    assert evaluator.progress(log + "{'loss': nan}\n", {}) is None


@pytest.mark.parametrize("bad", [{"objective": "speed"}, {"gbs": 0}, {"n_gpus": -1}])
def test_bad_arguments_are_refused(bad: dict[str, int | str]) -> None:
    with pytest.raises(UsageError):
        DeepSpeedEvaluator(**bad)  # type: ignore[arg-type]


def test_the_description_has_what_two_studies_must_share() -> None:
    assert mentions(DeepSpeedEvaluator("latency", gbs=16).describe(), "deepspeed", "latency", "gbs 16", "minimize")


def test_the_batch_that_deepspeed_says_it_trains_is_kept() -> None:
    line = "epoch=0/micro_step={0}/global_step={0}, RunningAvgSamplesPerSec=30.0, CurrSamplesPerSec=32.0, \n"
    steps = "".join(line.format(step) for step in (3, 4, 5))
    named = {"micro_train_batch_size": 8, "train_batch_size": 64}
    config = "".join(f"[config.py:1003:print]   {name} ............. {size}\n" for name, size in named.items())
    assert DeepSpeedEvaluator().measure(config + steps, {}).extra["global_batch_size"] == 64
    assert "global_batch_size" not in DeepSpeedEvaluator().measure(steps, {}).extra


def test_step_timers_are_of_the_batch_that_the_log_tells_whatever_the_trials_train() -> None:
    log = "[config.py:1003:print]   train_batch_size ............. 64\n" + "".join(timer_lines(0.5) for _ in range(4))
    assert DeepSpeedEvaluator(gbs=16).evaluate(log, {}) == pytest.approx(128)


def test_deepspeeds_lines_have_the_speed() -> None:
    line = "epoch=0/micro_step={0}/global_step={0}, RunningAvgSamplesPerSec=30.0, CurrSamplesPerSec=32.0, "
    assert DeepSpeedEvaluator().evaluate("".join(line.format(step) + "\n" for step in (3, 4, 5)), {}) == 32.0
