from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from tests.data_folder import measured_data
from tests.mentions import mentions
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import EvaluatorRegistry
from zenith_tune.presets.megatron.evaluator import MegatronEvaluator, sequence_in_command, sequence_in_log
from zenith_tune.study.parameters import Direction
from zenith_tune.study.trial_log import TrialLog

TAIL = (
    "loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations: {skipped:3d} | "
    "number of nan iterations: {nan:3d} |"
)
VERSIONS = {
    "2.5": " iteration {it:8d}/     100 | consumed samples: {it:12d} | elapsed time per iteration (ms): {ms:.1f} | "
    "learning rate: 1.000E-04 | global batch size:    16 | lm loss: 1.234567E+01 | loss scale: 1.0 | "
    "grad norm: 1.234 | num zeros: 0.0 | params norm: 1.234 | number of skipped iterations: {skipped:3d} | "
    "number of nan iterations: {nan:3d} |",
    "0.7": " [2024-05-30 22:00:43] iteration {it:8d}/     100 | consumed samples: {it:12d} | "
    "elapsed time per iteration (ms): {ms:.1f} | learning rate: 1.000000E-04 | decoupled learning rate: 1.0E-4 | "
    "global batch size:    16 | lm loss: 1.234567E+01 | " + TAIL,
    "0.12": " [2025-02-03 22:00:43] iteration {it:8d}/     100 | consumed samples: {it:12d} | "
    "skipped samples:            8 | elapsed time per iteration (ms): {ms:.1f} | learning rate: 1.000000E-04 | "
    "global batch size:    16 | "
    "lm loss: 1.234567E+01 | " + TAIL,
    "0.16": " [2026-08-22 15:22:22.123456] iteration {it:8d}/     100 | consumed samples: {it:12d} | "
    "elapsed time per iteration (ms): {ms:.1f} | energy per GPU (J/iter/GPU): 5.0 | power per GPU (W/GPU): 400.0 | "
    "learning rate: 1.000000E-04 | global batch size:    16 | lm loss: 1.234567E+01 | load_balancing_loss: 1.01 | "
    + TAIL,
    "ms-swift 3.12": " [2026-01-02 15:22:22] iteration {it:8d}/     100 | consumed samples: {it:12d} | "
    "elapsed time per iteration (ms): {ms:.1f} | memory(GiB): 41.5 | elapsed time: 1m 3s | remaining time: 9m 1s | "
    "learning rate: 1.000000E-04 | global batch size:    16 | loss: 1.234567E+00 | " + TAIL,
}
WITH_TFLOPS = (
    " [2024-05-30 22:00:43] iteration {it:8d}/     100 | consumed samples: {it:12d} | elapsed time per iteration (ms): "
    "{ms:.1f} | throughput per GPU (TFLOP/s/GPU): {tflops} | learning rate: 1.0E-04 | global batch size:    16 | "
    "lm loss: 1.234567E+01 | " + TAIL
)


def log_of(
    milliseconds: Sequence[float],
    line: str = WITH_TFLOPS,
    skipped: Sequence[int] = (),
    nan: Sequence[int] = (),
    every: int = 1,
) -> str:
    lines = []
    for index, ms in enumerate(milliseconds):
        counts = {"skipped": [*skipped, *[0] * 99][index], "nan": [*nan, *[0] * 99][index]}
        lines.append(line.format(it=(index + 1) * every, ms=ms, tflops=f"{1e5 / ms:.1f}", **counts) + "\n")
    return "".join(lines)


def cause(log: str, objective: str = "throughput") -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        MegatronEvaluator(objective).evaluate(log, {})
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_lines_of_every_version_are_read(version: str) -> None:
    measurement = MegatronEvaluator().measure(log_of([4000, 1000, 1000, 1000], VERSIONS[version]), {})
    assert (measurement.value, measurement.unit) == (16.0, "samples/s")
    assert (measurement.step_s, measurement.spread, measurement.num_samples) == (1.0, 0.0, 3)
    assert measurement.extra == {"global_batch_size": 16}


@pytest.mark.parametrize(
    "prefix", ["[default7]:", "7: ", "[rank7]:", "2024-05-30 22:00:43,001 INFO ", "\x1b[32m|", "x\r"]
)
@pytest.mark.parametrize("version", VERSIONS)
def test_noise_before_a_line_does_no_harm(version: str, prefix: str) -> None:
    log = "".join(prefix + line + "\n" for line in log_of([900, 500, 500], VERSIONS[version]).splitlines())
    assert MegatronEvaluator("step_time").evaluate(log, {}) == 0.5


def test_throughput_is_tflops_where_the_log_prints_them() -> None:
    measurement = MegatronEvaluator().measure(log_of([4000, 1000, 500, 500, 500, 500]), {})
    assert (measurement.value, measurement.unit) == (200.0, "TFLOP/s/GPU")
    assert measurement.extra == {"tflops_per_gpu": 200.0, "global_batch_size": 16}


def test_a_throughput_at_the_end_of_the_line_is_read() -> None:
    line = VERSIONS["0.7"] + " throughput per GPU (TFLOP/s/GPU): {tflops}"
    assert MegatronEvaluator("tflops").evaluate(log_of([900, 500, 500], line).rstrip(), {}) == 200.0


def test_without_a_batch_size_throughput_is_iterations_per_second() -> None:
    line = " iteration {it}/ 100 | elapsed time per iteration (ms): {ms:.1f} | lm loss: 1.0E+00 |"
    log = log_of([900, 500, 500], line)
    measurement = MegatronEvaluator().measure(log, {})
    assert (measurement.value, measurement.unit) == (2.0, "iterations/s")
    assert MegatronEvaluator(gbs=8).measure(log, {}).unit == "samples/s"
    assert MegatronEvaluator("samples_per_s", gbs=8).evaluate(log, {}) == 16.0
    assert "gbs" in cause(log, "samples_per_s")


@pytest.mark.parametrize(
    ("objective", "value", "unit", "direction"),
    [
        ("throughput", 200.0, "TFLOP/s/GPU", Direction.MAXIMIZE),
        ("tflops", 200.0, "TFLOP/s/GPU", Direction.MAXIMIZE),
        ("step_time", 0.5, "s", Direction.MINIMIZE),
        ("samples_per_s", 32.0, "samples/s", Direction.MAXIMIZE),
    ],
)
def test_each_objective_has_its_value_unit_and_direction(
    objective: str, value: float, unit: str, direction: Direction
) -> None:
    evaluator = MegatronEvaluator(objective)
    measurement = evaluator.measure(log_of([900, 500, 500]), {})
    assert (measurement.value, measurement.unit, evaluator.direction) == (value, unit, direction)
    assert objective in evaluator.describe()
    assert direction.value in evaluator.describe()


def test_it_is_registered_and_knows_its_objectives() -> None:
    assert EvaluatorRegistry.get("megatron") is MegatronEvaluator
    with pytest.raises(UsageError, match="samples_per_s, step_time, tflops, throughput"):
        MegatronEvaluator("mfu")
    with pytest.raises(UsageError, match=r"gbs\b.*\b1\b.*\b0\b"):
        MegatronEvaluator(gbs=0)


def test_a_single_line_is_all_there_is() -> None:
    measurement = MegatronEvaluator("step_time").measure(log_of([1234.5]), {})
    assert (measurement.value, measurement.spread, measurement.num_samples) == (1.2345, None, 1)


def test_the_peak_is_the_most_that_any_rank_reserved() -> None:
    report = (
        "[Rank {}] (after {} iterations) memory (MB) | allocated: 1.00 | max allocated: {} | reserved: 3.00 | "
        "max reserved: {}"
    )
    reports = [
        report.format(0, 1, 9999, 4.0),
        report.format(0, 2, 9999, 200.5),
        "[default4]:" + report.format(4, 2, 1, 300),
    ]
    log = log_of([900, 500]) + "\n".join(reports) + " | total device memory used: 88888.00\n"
    assert MegatronEvaluator().measure(log, {}).peak_memory_bytes == 300 * 2**20


def test_the_peak_of_swift_is_in_the_line_and_may_be_missing_elsewhere() -> None:
    log = log_of([900, 500], VERSIONS["ms-swift 3.12"])
    assert MegatronEvaluator().measure(log, {}).peak_memory_bytes == round(41.5 * 2**30)
    assert MegatronEvaluator().measure(log_of([900, 500]), {}).peak_memory_bytes is None


def test_two_lines_that_run_into_one_are_told_apart() -> None:
    assert MegatronEvaluator("step_time").evaluate(log_of([900, 500, 500]).replace("|\n", "|"), {}) == 0.5


def test_a_doubled_log_counts_once_and_a_restarted_one_from_its_last_start() -> None:
    doubled = "".join(line + line for line in log_of([900, 500, 500]).splitlines(keepends=True))
    assert MegatronEvaluator().measure(doubled, {}).num_samples == 2
    restarted = log_of([100, 100, 100, 100, 100]) + log_of([900, 500, 500])
    assert MegatronEvaluator("step_time").evaluate(restarted, {}) == 0.5


def test_torn_and_similar_lines_are_passed_over() -> None:
    noise = [
        " iteration        9/     100 | consumed samples:           80 | elapsed time per iter\n",
        " iteration        9/     100 | elapsed time per iteration (ms): 12[rank0]: warning | lm loss: 1.0 |\n",
        "validation loss at iteration 9 | lm loss value: 1.0E+00 | lm loss PPL: 2.7E+00 |\n",
        "saving checkpoint at iteration       9 to /checkpoints\n",
    ]
    assert MegatronEvaluator().measure(log_of([900, 500, 500]) + "".join(noise), {}).num_samples == 2


@pytest.mark.parametrize("log", ["", "  \n\n"])
def test_an_empty_log_is_said_to_be_empty(log: str) -> None:
    assert mentions(cause(log), "empty") and "--log-interval" not in cause(log)


def test_a_log_without_iterations_names_the_option() -> None:
    assert mentions(cause("loading\nsaving\n"), "--log-interval")


def test_tflops_that_are_not_printed_name_the_option() -> None:
    assert "--log-throughput" in cause(log_of([900, 500, 500], VERSIONS["0.7"]), "tflops")


def test_a_throughput_too_small_to_print_is_no_value() -> None:
    assert "0.0 TFLOP/s/GPU" in cause(log_of([9e7, 9e7]))


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("lm loss: 1.234567E+01", "lm loss: nan", ("NaN", "lm loss", "nan")),
        ("lm loss: 1.234567E+01", "lm loss: INF", ("NaN", "lm loss", "inf")),
        ("lm loss: 1.234567E+01 |", "", ("NaN", "no lm loss")),
        ("grad norm: 1.234", "grad norm: nan", ("NaN", "grad norm", "nan")),
        ("nan iterations:   0", "nan iterations:   2", ("NaN", 2)),
        ("(ms): 500.0", "(ms): nan", ("nan ms",)),
        ("(ms): 500.0", "(ms): 0.0", ("0.0 ms",)),
        ("GPU): 200.0", "GPU): inf", ("inf TFLOP/s/GPU",)),
    ],
)
def test_what_is_not_a_number_is_a_failure_with_its_iteration(old: str, new: str, named: tuple[object, ...]) -> None:
    lines = log_of([900, 500, 500, 500]).splitlines(keepends=True)
    assert old in lines[2]
    lines[2] = lines[2].replace(old, new)
    assert mentions(cause("".join(lines)), "iteration 3", *named)


def test_a_loss_scale_of_infinity_is_no_loss() -> None:
    log = log_of([900, 500, 500]).replace("loss scale: 1.0", "loss scale: inf")
    assert MegatronEvaluator("step_time").evaluate(log, {}) == 0.5


def test_iterations_skipped_at_the_start_are_warm_up() -> None:
    log = log_of([100] * 4 + [900, 500, 500, 500], skipped=[1, 1, 1, 1]).replace(
        "grad norm: 1.234", "grad norm: inf", 4
    )
    measurement = MegatronEvaluator("step_time").measure(log, {})
    assert (measurement.value, measurement.num_samples) == (0.5, 3)
    without_loss = log.replace(" lm loss: 1.234567E+01 |", "", 4)
    assert MegatronEvaluator("step_time").evaluate(without_loss, {}) == 0.5


def test_iterations_are_counted_not_lines() -> None:
    log = log_of([400, 500], skipped=[9, 0], every=10)
    assert MegatronEvaluator("step_time").evaluate(log, {}) == 0.5


def test_too_few_clean_iterations_after_skipped_ones_are_a_failure() -> None:
    assert mentions(cause(log_of([500] * 7, skipped=[1] * 5)), "skipped", 5, 2)
    assert mentions(cause(log_of([500] * 3, skipped=[1] * 3)), "skipped", 3, 0)


def test_an_iteration_skipped_later_is_a_failure() -> None:
    assert mentions(cause(log_of([500] * 8, skipped=[1, 0, 0, 0, 2])), "skipped", "iteration 5", 3)


def test_a_real_log_of_sixty_iterations_is_read() -> None:
    log = TrialLog(measured_data() / "logs" / "megatron_steady60.log").text()
    measurement = MegatronEvaluator().measure(log, {})
    assert measurement.value == pytest.approx(203.35)
    assert measurement.unit == "TFLOP/s/GPU"
    assert measurement.step_s == pytest.approx(0.42915)
    assert measurement.spread == pytest.approx(0.026, abs=0.001)
    assert measurement.num_samples == 58
    assert measurement.peak_memory_bytes == 25854 * 2**20


@pytest.mark.parametrize("piece", ["iteration 1/1 |", "iteration" + " " * 50, "{'iteration': '1/1'", "| a: b "])
def test_hostile_text_is_judged_in_a_moment(piece: str) -> None:
    started = time.process_time()
    cause(piece * (2**22 // len(piece)))
    assert time.process_time() - started < 30


BARE = "throughput per GPU (TFLOP/s/GPU): {}\n"


@pytest.mark.parametrize(
    "evaluator", [MegatronEvaluator(), MegatronEvaluator("tflops"), MegatronEvaluator(gbs=8, seq=8)]
)
def test_a_throughput_on_a_line_of_its_own_is_a_value(evaluator: MegatronEvaluator) -> None:
    found = evaluator.measure(f"starting\n{BARE.format('80.0')}done\n", {})
    assert (found.value, found.unit, found.num_samples, found.spread) == (80.0, "TFLOP/s/GPU", 1, None)


def test_several_of_them_have_a_warm_up() -> None:
    log = "".join(map(BARE.format, (20.0, 60.0, 80.0, 81.0, 79.0, 80.0)))
    found = MegatronEvaluator().measure(log, {})
    assert found.value == 80.0 and found.num_samples == 4


@pytest.mark.parametrize("text", ["nan", "-1.0", "0.0", "inf", "much"])
def test_a_throughput_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        MegatronEvaluator().measure(BARE.format("80.0") + BARE.format(text), {})


def test_a_bare_throughput_tells_no_step_time() -> None:
    with pytest.raises(ValueError):
        MegatronEvaluator("step_time").measure(BARE.format("80.0"), {})


def test_a_command_may_have_the_sequence_length() -> None:
    assert sequence_in_command("megatron sft --max_length 4096") == 4096
    assert sequence_in_command("bash train.sh") is None


def test_a_log_may_have_the_sequence_length() -> None:
    assert sequence_in_log("  encoder_seq_length .... 8\n  seq_length .... 4096\n") == 4096
