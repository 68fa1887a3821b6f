from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.started_processes import start_process
from zenith_tune.evaluators.failures.failures import FailureKind, classify
from zenith_tune.presets.megatron.evaluator import MegatronEvaluator

TRAINER = Path(__file__).resolve().parents[2] / "examples" / "fake_megatron_train.py"
BEST = (
    *("--tensor-model-parallel-size", "2", "--expert-model-parallel-size", "4"),
    *("--micro-batch-size", "2", "--recompute-granularity", "selective"),
)


def run(*options: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(TRAINER), "--iteration-seconds", "0", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, env=env)


def tflops(*options: str) -> float:
    done = run(*options)
    assert done.returncode == 0, done.stdout + done.stderr
    return MegatronEvaluator("tflops").evaluate(done.stdout, {})


def test_plain_defaults_train_and_are_clearly_slower_than_the_best_layout() -> None:
    assert tflops(*BEST) > 1.3 * tflops()


def test_a_line_ends_in_its_throughput_and_the_first_one_is_warm_up() -> None:
    lines = [line for line in run().stdout.splitlines() if "iteration " in line]
    values = [re.search(r"\| throughput per GPU \(TFLOP/s/GPU\): (\d+\.\d)$", line) for line in lines]
    numbers = [float(value[1]) for value in values if value]
    assert len(lines) == len(numbers) == 8
    assert numbers[0] < 0.5 * numbers[1]
    assert len(set(numbers[1:])) == 1


def test_the_peak_memory_is_in_the_log() -> None:
    peak = MegatronEvaluator().measure(run().stdout, {}).peak_memory_bytes
    assert peak is not None
    assert 50 * 2**30 < peak < 80 * 2**30


@pytest.mark.parametrize(
    "options",
    [
        ("--recompute-granularity", "selective"),
        (*BEST, "--micro-batch-size", "4"),
        ("--recompute-method", "block", "--recompute-num-layers", "1"),
    ],
)
def test_a_point_that_needs_too_much_runs_out_of_memory(options: tuple[str, ...]) -> None:
    done = run(*options)
    assert done.returncode == 1
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate" in done.stdout
    assert "iteration " not in done.stdout
    failure = classify(done.stdout + done.stderr, done.returncode)
    assert failure is not None
    assert failure.kind is FailureKind.OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        (("--tensor-model-parallel-size", "3"), "world size (8) is not divisible by total_model_size"),
        (("--micro-batch-size", "3"), "global batch size (16) is not divisible by micro batch size (3) times"),
        (("--expert-model-parallel-size", "16"), "world_size (8) is not divisible by expert_tensor_model_pipeline"),
    ],
)
def test_an_impossible_layout_is_refused_in_megatrons_words(options: tuple[str, ...], refusal: str) -> None:
    done = run(*options)
    assert done.returncode == 1
    assert refusal in done.stderr
    failure = classify(done.stdout + done.stderr, done.returncode)
    assert failure is not None
    assert failure.kind is FailureKind.CONFIGURATION
    assert refusal in failure.message


@pytest.mark.parametrize("option", ["--tensor-model-parallel", "--no-such-option", "--micro-batch"])
def test_an_unknown_or_shortened_option_is_refused(option: str) -> None:
    done = run(option, "2")
    assert done.returncode == 2
    failure = classify(done.stdout + done.stderr, done.returncode)
    assert failure is not None
    assert failure.kind is FailureKind.CONFIGURATION
    assert f"unrecognized arguments: {option} 2" in failure.message


def test_underscores_spell_the_same_options() -> None:
    assert tflops(*(option.replace("-", "_").replace("__", "--", 1) for option in BEST)) == tflops(*BEST)


def test_the_world_size_of_the_environment_is_the_default() -> None:
    assert "using world size: 4, data-parallel size: 4" in run(env={"WORLD_SIZE": "4"}).stdout


def test_noise_repeats_itself_and_follows_the_seed() -> None:
    runs = [re.sub(r"\[\d.*?\]", "", run("--noise", "0.05", "--seed", seed).stdout) for seed in "112"]
    assert runs[0] == runs[1] != runs[2]
    measured = MegatronEvaluator().measure(runs[0], {})
    assert measured.spread
    assert "throughput" in run("--noise").stdout


def test_recomputation_expert_and_tensor_parallelism_cost_what_they_should() -> None:
    plain = tflops()
    split = tflops("--tensor-model-parallel-size", "2")
    selective = tflops("--tensor-model-parallel-size", "2", "--recompute-granularity", "selective")
    assert split * 1.2 < selective < split * 1.3
    assert plain < tflops("--expert-model-parallel-size", "4") < plain * 1.1
    assert plain > split > tflops("--tensor-model-parallel-size", "8")
    assert plain > tflops("--pipeline-model-parallel-size", "2")
    gains = [tflops("--tensor-model-parallel-size", "4", "--micro-batch-size", str(mbs)) for mbs in (1, 2, 4, 8)]
    assert gains[1] / gains[0] > gains[2] / gains[1] > gains[3] / gains[2] > 1


def test_a_crash_happens_in_the_middle() -> None:
    done = run("--crash")
    assert done.returncode == 1
    assert done.stdout.count("throughput") == 4
    failure = classify(done.stdout + done.stderr, done.returncode)
    assert failure is not None
    assert (failure.kind, "RuntimeError: the training loop failed" in failure.message) == (FailureKind.CRASH, True)


def test_a_hang_comes_after_two_iterations() -> None:
    process = start_process([sys.executable, "-I", str(TRAINER), "--hang"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        assert "iteration        2/" in lines[2]
        assert "max reserved" in lines[3]
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.3)
    finally:
        process.kill()
        process.communicate()
