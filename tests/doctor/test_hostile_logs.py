"""Logs that nobody would write, and that are found all the same."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cli.test_doctor import GOOD, H100, LAUNCH, LINE
from tests.command_runs import Run, as_json, running

COMMAND = ("--", *LAUNCH, *GOOD, "--global-batch-size", "64")
STEPS = "".join(LINE.format(number, "6500.0") for number in range(1, 6))
RESERVED = "[Rank 0] (after 2 iterations) memory (MB) | max allocated: {0} | max reserved: {0}\n"


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Run:
    return running("doctor", capsys)


def saved(folder: Path, content: str | bytes) -> str:
    path = folder / "train.log"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


@pytest.mark.parametrize(
    "content",
    [
        "".join(LINE.format(number, "\x1b[1m6500.0\x1b[0m") for number in range(1, 6)),
        STEPS.replace(" iteration", "\x1b[32m iteration").replace("\n", "\x1b[0m\x1b[K\n"),
        STEPS.replace("\n", "\r\n"),
        STEPS.replace("\n", "\r"),
        "\0" * 1000 + STEPS,
        b"\xff\xfe\x80" * 100 + STEPS.encode(),
        RESERVED.format("nan") + STEPS,
        RESERVED.format("-1") + STEPS,
    ],
    ids=["bold", "coloured", "windows", "returns", "zeros", "binary", "no number", "below 0"],
)
def test_a_log_with_more_than_words_is_read(doctor: Run, tmp_path: Path, content: str | bytes) -> None:
    shown = as_json(doctor(saved(tmp_path, content), *H100, "--json", *COMMAND))
    assert shown["measured"]["step_s"] == pytest.approx(6.5)
    assert shown["measured"]["peak_memory_bytes"] is None


@pytest.mark.parametrize("time_ms", ["nan", "inf", "-5.0", "0.0", "9" * 400])
def test_a_time_that_no_step_takes_is_refused(doctor: Run, tmp_path: Path, time_ms: str) -> None:
    steps = "".join(LINE.format(number, time_ms) for number in range(1, 6))
    done = doctor(saved(tmp_path, steps), *H100, *COMMAND)
    assert done.code == 2 and done.out == "" and done.err.count("\n") == 1
    assert "speed" in done.err


@pytest.mark.parametrize("time_ms", ["1e300", "1e-300"])
def test_a_step_of_ages_or_of_nothing_is_refused(doctor: Run, tmp_path: Path, time_ms: str) -> None:
    steps = "".join(LINE.format(number, time_ms) for number in range(1, 6))
    done = doctor(saved(tmp_path, steps), *H100, *COMMAND)
    assert done.code == 2 and done.out == "" and done.err.count("\n") == 1
    assert str(tmp_path) in done.err and "step" in done.err


def test_a_peak_that_the_gpu_could_not_hold_is_of_another_gpu(doctor: Run, tmp_path: Path) -> None:
    path = saved(tmp_path, RESERVED.format(120 * 1024.0) + STEPS)
    done = doctor(path, *H100, *COMMAND)
    assert done.code == 2 and done.err.count("\n") == 1
    assert all(part in done.err for part in ("120.0 GiB", "h100x8", "79.1 GiB", "--cluster"))
    assert as_json(doctor(path, "--cluster", "h200x8", "--json", *COMMAND))["measured"]["peak_memory_bytes"] > 0


@pytest.mark.slow
def test_a_line_without_end_takes_seconds(doctor: Run, tmp_path: Path) -> None:
    for line in ("x", "elapsed time per iteration (ms): ", "  seq_length ....", "\x1b[", "\x1b]0;"):
        path = saved(tmp_path, line * (2**24 // len(line)) + "\n" + STEPS)
        begin = time.process_time()
        assert doctor(path, *H100, *COMMAND).code == 0
        assert time.process_time() - begin < 20, line
