"""Tokens per second: the objective wherever batch and sequence are known."""

from __future__ import annotations

import pytest

from tests.data_folder import measured_data
from tests.evaluators.iteration_logs import log_of
from tests.mentions import mentions
from zenith_tune.errors import UsageError
from zenith_tune.presets.megatron.documented.preset import MegatronPreset
from zenith_tune.presets.megatron.evaluator import MegatronEvaluator, sequence_in_command, sequence_in_log
from zenith_tune.study.parameters import Direction
from zenith_tune.study.trial_log import TrialLog

STEADY = log_of([2.0, 0.5, 0.5, 0.5])  # of a global batch of 8
WITHOUT_BATCH = STEADY.replace("| global batch size: 8 ", "")
TABLE = (
    "  encoder_seq_length .............................. 77\n  seq_length ...................................... {}\n"
)


def test_it_is_the_batch_times_the_sequence_by_the_step() -> None:
    evaluator = MegatronEvaluator("tokens_per_s", seq=1024)
    measured = evaluator.measure(STEADY, {})
    assert (measured.value, measured.unit, evaluator.direction) == (8 * 1024 / 0.5, "tokens/s", Direction.MAXIMIZE)
    assert (measured.step_s, measured.num_samples, measured.extra) == (0.5, 3, {"global_batch_size": 8})


def test_it_is_the_default_where_batch_and_sequence_are_given_and_throughput_else() -> None:
    whole = MegatronEvaluator(gbs=8, seq=1024)
    assert whole.objective == "tokens_per_s" and mentions(whole.describe(), "tokens_per_s", "gbs 8", "seq 1024")
    assert MegatronEvaluator(gbs=8).objective == MegatronEvaluator(seq=1024).objective == "throughput"
    assert mentions(MegatronEvaluator("tokens_per_s").describe(), "tokens_per_s", "samples/s", "seq=4096")
    # A study that was made before there were tokens is continued under its own name.
    assert MegatronEvaluator("throughput", gbs=8, seq=1024).describe() == MegatronEvaluator(gbs=8).describe()


@pytest.mark.parametrize(
    ("log", "command"),
    [
        (TABLE.format(2048), ""),
        ("[default0]:" + TABLE.format(2048), "bash train.sh"),
        ("args: MegatronSftArguments(model='x', max_length=2048, truncation_strategy='delete')\n", "megatron sft"),
        ("  max_length ...................................... 2048\n", ""),
        ("", "torchrun pretrain_gpt.py --seq-length 2048"),
        (TABLE.format(64), "torchrun pretrain_gpt.py --seq-length=2048"),
        ("", "NPROC_PER_NODE=8 megatron sft --max_length 2048"),
    ],
)
def test_the_sequence_is_taken_from_the_command_or_the_dumped_arguments(log: str, command: str) -> None:
    measured = MegatronEvaluator("tokens_per_s").measure(log + STEADY, {"command": command})
    assert (measured.value, measured.unit) == (8 * 2048 / 0.5, "tokens/s")


def test_progress_has_the_same_unit_and_values_as_the_measurement() -> None:
    evaluator = MegatronEvaluator("tokens_per_s")
    progress = evaluator.progress(TABLE.format(2048) + STEADY, {})
    assert progress is not None
    assert (list(progress.values), progress.unit) == ([32768.0] * 3, "tokens/s")


def test_without_a_sequence_or_a_batch_it_falls_back_and_says_why() -> None:
    measured = MegatronEvaluator("tokens_per_s").measure(STEADY, {"command": "bash train.sh"})
    assert (measured.value, measured.unit) == (16.0, "samples/s")
    assert mentions(measured.extra["fallback"], "tokens/s", "--seq 4096")
    assert measured.extra["global_batch_size"] == 8
    measured = MegatronEvaluator("tokens_per_s", seq=1024).measure(WITHOUT_BATCH, {})
    assert (measured.value, measured.unit) == (2.0, "iterations/s")
    assert mentions(measured.extra["fallback"], "tokens/s", "--gbs 16")
    assert MegatronEvaluator("tokens_per_s", seq=1024, gbs=4).evaluate(WITHOUT_BATCH, {}) == 4 * 1024 / 0.5


def test_tflops_are_kept_beside_it() -> None:
    log = STEADY.replace("| global", "| throughput per GPU (TFLOP/s/GPU): 312.5 | global")
    assert MegatronEvaluator(gbs=8, seq=1024).measure(log, {}).extra["tflops_per_gpu"] == 312.5


@pytest.mark.parametrize("text", ["0", "-5", "$SEQ", "4k", "9" * 30])
def test_a_length_that_is_none_is_not_believed(text: str) -> None:
    assert sequence_in_command(f"python train.py --seq-length {text}") is None
    assert sequence_in_log(f"  seq_length .... {text}\n") is None
    with pytest.raises(UsageError, match=r"seq\b.*\b1\b.*\b0\b"):
        MegatronEvaluator(seq=0)


@pytest.mark.parametrize("command", ["", "  ", "echo 'unclosed", "for i in 1; do a; done"])
def test_a_command_that_cannot_be_read_has_no_length(command: str) -> None:
    assert sequence_in_command(command) is None


def test_a_real_log_has_its_sequence_and_both_peaks() -> None:
    log = TrialLog(measured_data() / "logs" / "megatron_steady60.log").text()
    measured = MegatronEvaluator("tokens_per_s").measure(log, {})
    assert measured.unit == "tokens/s"
    assert measured.value == pytest.approx(8 * 2048 / 0.42915, rel=1e-3)
    assert measured.extra["tflops_per_gpu"] == pytest.approx(203.35)
    allocated, reserved = measured.extra["peak_allocated_bytes"], measured.peak_memory_bytes
    assert isinstance(allocated, int)
    assert reserved is not None
    assert 0.8 * reserved < allocated < reserved


def test_the_peaks_are_the_most_of_any_rank_in_every_versions_report() -> None:
    report = "[Rank {}] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: {} | reserved: 3.0 | "
    lines = [
        report.format(0, "50.5") + "max reserved: 80.0",
        report.format(1, "70.25") + "max reserved: 75.0",
        "[default2]:" + report.format(2, "60.0") + "max reserved: 90.5 | total device memory used: 99999.0",
        "3: " + report.format(3, "10.0"),  # torn
    ]
    measured = MegatronEvaluator().measure("\n".join(lines) + "\n" + STEADY, {})
    assert measured.peak_memory_bytes == round(90.5 * 2**20)
    assert measured.extra["peak_allocated_bytes"] == round(70.25 * 2**20)


@pytest.mark.parametrize(
    ("command", "args", "objective", "seq"),
    [
        ("megatron sft --max_length 4096", {}, "tokens_per_s", 4096),
        ("torchrun pretrain_gpt.py --seq-length 4096", {"seq": 64}, "tokens_per_s", 64),
        ("bash train.sh", {}, "throughput", None),
        ("bash train.sh", {"seq": 64}, "tokens_per_s", 64),
    ],
)
def test_the_preset_asks_for_it_where_it_knows_the_sequence(
    command: str, args: dict[str, int], objective: str, seq: int | None
) -> None:
    preset = MegatronPreset(n_gpus=8, gbs=16, **args)  # type: ignore[arg-type]
    preset.bind(command)
    evaluator = preset.evaluator()
    assert isinstance(evaluator, MegatronEvaluator)
    assert (evaluator.objective, evaluator.gbs, evaluator.seq) == (objective, 16, seq)


def test_samples_that_may_be_shorter_than_the_sequence_are_noted() -> None:
    preset = MegatronPreset(n_gpus=8, gbs=16)

    def noted(command: str) -> bool:
        return any(mentions(note, "tokens/s", "--max_length") for note in preset.warnings(command))

    assert noted("megatron sft --max_length 4096")
    assert not noted("megatron sft --max_length 4096 --packing true")
    assert not noted("python train.py --seq-length 4096")
