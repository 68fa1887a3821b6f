from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from zenith_calibration.probe.prober import MAX_BYTES, StepRecord, is_memory, is_step, read_log, read_record
from zenith_tune.units import MIB


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "steps.jsonl"


def line(seconds: Any, **values: Any) -> str:
    return json.dumps({"optimizer": 1, "seconds": seconds, **values}) + "\n"


def test_steps_are_the_time_between_lines_and_the_first_is_left_out(path: Path) -> None:
    memory = {"allocated": 5, "reserved": 7, "device": 9, "gpu": "NVIDIA H200"}
    path.write_text(line(100.0, **memory | {"allocated": 6}) + line(102.0, **memory) + line(103, **memory))
    record = read_record(path)
    assert record.steps_s == (2.0, 1.0) and record.step_s == 1.5
    assert (record.allocated_bytes, record.reserved_bytes, record.device_bytes) == (6, 7, 9)
    assert (record.gpu, record.source) == ("NVIDIA H200", "hook")


def test_one_line_is_a_start_and_no_step(path: Path) -> None:
    path.write_text(line(1.0, allocated=3))
    record = read_record(path)
    assert record.steps_s == () and record.step_s is None
    assert (record.allocated_bytes, record.source) == (3, "hook")


def test_a_torn_last_line_waits_for_its_end(path: Path) -> None:
    whole = line(1.0) + line(2.0) + line(30.5)
    path.write_text(whole[:-4])
    assert read_record(path).steps_s == (1.0,)
    path.write_text(whole[:-1])
    assert read_record(path).steps_s == (1.0,), "its newline may not be all that is missing"
    path.write_text(whole)
    assert read_record(path).steps_s == (1.0, 28.5)


@pytest.mark.parametrize(
    "junk",
    [
        "not json\n",
        "[1, 2]\n",
        "null\n\n\n",
        '{"optimizer": 1}\n',
        '{"optimizer": 1, "seconds": true}\n',
        '{"optimizer": 1, "seconds": "2"}\n',
        '{"optimizer": 1, "seconds": [2]}\n',
        "\x00\x00\x00\n",
        "\ud800\n".encode("utf-8", "surrogatepass").decode("latin-1"),
    ],
)
def test_lines_that_are_not_the_hooks_own_are_left_out(path: Path, junk: str) -> None:
    path.write_bytes((junk + line(1.0) + junk + line(3.0) + junk).encode("latin-1"))
    assert read_record(path).steps_s == (2.0,)


@pytest.mark.parametrize("memory", [True, -1, 0, 1.5, "many", None, 10**400, 2**59, [1], {}])
def test_memory_that_is_no_number_of_bytes_is_not_taken_for_one(path: Path, memory: Any) -> None:
    path.write_text(line(1.0, allocated=memory) + line(2.0, allocated=memory, reserved=4))
    record = read_record(path)
    assert record.allocated_bytes is None and record.reserved_bytes == 4 and record.steps_s == (1.0,)


def test_time_that_runs_backwards_is_no_step(path: Path) -> None:
    path.write_text("".join(map(line, (5.0, 7.0, 3.0, 3.0, 4.5))))
    assert read_record(path).steps_s == (2.0, 1.5)


@pytest.mark.parametrize("seconds", [1e17, 1e-300, 90_000.0, 1e-7])
def test_a_step_that_no_training_takes_is_left_out(path: Path, seconds: float) -> None:
    path.write_text(line(0.0) + line(seconds) + line(0.0) + line(2.0))
    assert read_record(path).steps_s == (2.0,)
    log = "\n".join(ITERATION.format(number, 1000 * value) for number, value in enumerate((9, 9, 2.0, 1e17), start=1))
    assert read_log(log + "\n").steps_s == (2.0,)


def test_memory_that_no_gpu_has_is_left_out_of_a_log_too() -> None:
    lines = [ITERATION.format(number, 250) for number in range(1, 5)]
    assert read_log("\n".join([*lines, REPORT.format("999999999999.0")]) + "\n").reserved_bytes is None


def test_a_record_is_cut_to_the_steps_that_were_asked_for(path: Path) -> None:
    path.write_text("".join(map(line, (0.0, 1.0, 3.0, 9.0, 99.0))))
    assert read_record(path).cut_to(2).steps_s == (1.0, 2.0)
    assert read_record(path).cut_to(9) == read_record(path)


def test_the_name_of_a_gpu_is_one_plain_line(path: Path) -> None:
    path.write_text(line(1.0, gpu="\x1b[2J\x1b]0;title\x07NVIDIA\nH200\r" + "!" * 999))
    gpu = read_record(path).gpu
    assert gpu.startswith("NVIDIA H200 !") and len(gpu) <= 80


def test_of_two_optimizers_the_first_ones_steps_are_counted(path: Path) -> None:
    lines = [line(t + late, optimizer=name) for t in (0.0, 2.0, 4.0) for name, late in ((11, 0.0), (22, 0.3))]
    path.write_text("".join(lines) + line(9.0, optimizer=22, allocated=77))
    record = read_record(path)
    assert record.steps_s == (2.0, 2.0) and record.allocated_bytes == 77


def test_a_huge_record_is_read_within_bounds(path: Path) -> None:
    with path.open("w") as file:
        file.write(line(1.0) + line(2.0))
        file.truncate(64 * MAX_BYTES)
    before = time.process_time()
    assert read_record(path).steps_s == (1.0,)
    assert time.process_time() - before < 10


def test_what_is_no_file_is_an_empty_record(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "none", tmp_path, tmp_path / "pipe"):
        assert read_record(place) == StepRecord()


ITERATION = (
    " iteration {:8d}/     100 | consumed samples:  16 | elapsed time per iteration (ms): {:.1f} | loss scale: 1.0 |"
)
REPORT = "[Rank 0] (after 1 iterations) memory (MB) | max allocated: 900.0 | reserved: 9.0 | max reserved: {}"


def test_a_log_shows_the_steps_after_the_first_two_lines_and_the_reserved_memory() -> None:
    lines = [ITERATION.format(number, ms) for number, ms in enumerate((9000, 5000, 250, 350, 300), start=1)]
    record = read_log("\n".join([lines[0], REPORT.format("1024.0"), *lines[1:]]) + "\n")
    assert record.steps_s == (0.25, 0.35, 0.3) and record.step_s == 0.3
    assert (record.reserved_bytes, record.allocated_bytes, record.source) == (1024 * MIB, None, "log")


def test_a_log_without_iterations_says_nothing() -> None:
    assert read_log("building the model\n" + REPORT.format("1024.0")) == StepRecord()
    assert read_log(ITERATION.format(1, 9000) + "\n").step_s is None


def test_a_step_takes_between_nothing_and_forever() -> None:
    assert is_step(0.5)
    assert not is_step(1e17)
    assert not is_step(float("nan"))


def test_memory_in_use_is_that_of_a_gpu() -> None:
    assert is_memory(80 * 2**30)
    assert not is_memory(0)
    assert not is_memory(2**59)
