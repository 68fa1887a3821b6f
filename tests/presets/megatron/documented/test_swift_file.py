"""The logging.jsonl of ms-swift: read where the log has no lines, and never another run's."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from zenith_tune.presets.megatron.evaluator import MegatronEvaluator
from zenith_tune.presets.megatron.swift_log import logging_file, read_swift_steps

EVALUATOR = MegatronEvaluator("step_time")


def entry(iteration: int, mean_s: float, loss: float = 1.5) -> str:
    fields = {"loss": loss, "iteration": f"{iteration}/100", "memory(GiB)": 41.5, "train_speed(s/it)": mean_s}
    return json.dumps(fields) + "\n"


def write(path: Path, text: str, age_s: float = 0.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def trial(command: str, duration_s: float = 60.0) -> dict[str, Any]:
    return {"trial_id": 1, "command": command, "parameters": {}, "duration": duration_s}


STEADY = entry(5, 10.0) + entry(10, 6.0) + entry(15, 70 / 15)


@pytest.mark.parametrize("option", ["--output_dir {}", "--output-dir={}", "--save {}"])
@pytest.mark.parametrize("below", ["", "v0-20260822-152222", "v12-20260822-152222"])
def test_it_is_found_where_the_command_puts_it(tmp_path: Path, option: str, below: str) -> None:
    write(tmp_path / below / "logging.jsonl", STEADY)
    measured = EVALUATOR.measure("loading\n", trial("megatron sft " + option.format(tmp_path)))
    assert measured.value == pytest.approx(2.0)
    assert measured.peak_memory_bytes == round(41.5 * 2**30)
    progress = EVALUATOR.progress("loading\n", trial("megatron sft " + option.format(tmp_path)))
    assert progress is not None
    assert progress.num_iterations == 15


@pytest.mark.parametrize("said", ["[INFO:swift] logging_path: {}", "The logging file will be saved in: {}"])
def test_it_is_found_where_the_log_says(tmp_path: Path, said: str) -> None:
    path = write(tmp_path / "some where" / "v0-1" / "logging.jsonl", STEADY)
    log = f"[rank0]: {said.format(path)}\n"
    write(tmp_path / "other" / "logging.jsonl", entry(5, 99.0))
    assert EVALUATOR.evaluate(log, trial(f"bash train.sh --output_dir {tmp_path / 'other'}")) == pytest.approx(2.0)


def test_the_log_goes_first(tmp_path: Path) -> None:
    write(tmp_path / "logging.jsonl", STEADY)
    assert EVALUATOR.evaluate(entry(5, 7.0), trial(f"megatron sft --output_dir {tmp_path}")) == 7.0


def test_a_file_that_was_written_before_the_trial_is_another_runs(tmp_path: Path) -> None:
    write(tmp_path / "v0-1" / "logging.jsonl", STEADY, age_s=61)
    command = f"megatron sft --output_dir {tmp_path}"
    assert logging_file("", trial(command, duration_s=60)) == ""
    assert logging_file("", trial(command, duration_s=62)) != ""
    with pytest.raises(ValueError, match="--log-interval"):
        EVALUATOR.evaluate("loading\n", trial(command, duration_s=60))
    # A recovered trial may not know how long it ran.
    assert logging_file("", {"command": command}) == ""


def test_of_several_the_newest_counts(tmp_path: Path) -> None:
    write(tmp_path / "v0-1" / "logging.jsonl", entry(5, 9.0), age_s=30)
    write(tmp_path / "v1-2" / "logging.jsonl", entry(5, 3.0), age_s=10)
    write(tmp_path / "logging.jsonl", entry(5, 8.0), age_s=20)
    write(tmp_path / "checkpoint-5" / "logging.jsonl", entry(5, 1.0))
    assert EVALUATOR.evaluate("x", trial(f"megatron sft --output_dir {tmp_path}")) == 3.0


@pytest.mark.parametrize("before", [entry(5, 4.0), entry(5, 4.0) + entry(10, 4.0), entry(5, 30.0) + entry(10, 30.0)])
def test_two_trials_that_write_one_file_are_not_mixed(tmp_path: Path, before: str) -> None:
    # With --add_version false the second run goes on behind the first one's lines.
    second = entry(5, 10.0, loss=1.25) + entry(10, 6.0, loss=1.0)
    write(tmp_path / "logging.jsonl", before + second)
    measured = EVALUATOR.measure("", trial(f"megatron sft --output_dir {tmp_path} --add_version false"))
    assert measured.value == pytest.approx(2.0)
    assert [line.seconds for line in read_swift_steps(before + second)] == pytest.approx([10.0, 2.0])


def test_a_doubled_line_begins_no_run() -> None:
    doubled = entry(5, 10.0) * 2 + entry(10, 6.0) * 2
    assert [line.seconds for line in read_swift_steps(doubled)] == pytest.approx([10.0, 2.0])


def test_a_line_that_is_half_written_does_not_count(tmp_path: Path) -> None:
    write(tmp_path / "logging.jsonl", STEADY + entry(20, 4.0)[:-8])
    progress = EVALUATOR.progress("x\n", trial(f"megatron sft --output_dir {tmp_path}"))
    assert progress is not None
    assert progress.num_iterations == 15


@pytest.mark.parametrize(
    "command",
    [
        "",
        "echo 'unclosed",
        "megatron sft",
        "megatron sft --output_dir",
        "megatron sft --output_dir $OUT",
        "megatron sft --output_dir /no/such/folder",
        "megatron sft --output_dir ~nobody-of-this-name/out",
        "cd elsewhere && megatron sft --output_dir out",
    ],
)
def test_where_nobody_knows_the_folder_there_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "out" / "logging.jsonl", STEADY)
    assert logging_file("", trial(command)) == ""


def test_a_relative_folder_is_where_the_trial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "out" / "logging.jsonl", STEADY)
    assert logging_file("", trial("megatron sft --output_dir out")) == STEADY


def test_a_link_or_a_pipe_is_not_read(tmp_path: Path) -> None:
    target = write(tmp_path / "elsewhere.txt", STEADY)
    (tmp_path / "v0-1").mkdir()
    (tmp_path / "v0-1" / "logging.jsonl").symlink_to(target)
    os.mkfifo(tmp_path / "logging.jsonl")
    assert logging_file("", trial(f"megatron sft --output_dir {tmp_path}")) == ""
