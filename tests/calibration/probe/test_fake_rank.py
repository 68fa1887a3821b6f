from __future__ import annotations

import os
from pathlib import Path

import pytest

from zenith_calibration.probe.fake_rank import (
    LEFT_OUT,
    fake_rank,
    first_rank,
    in_folder,
    interpreter,
    probed_micro_batches,
    probed_stages,
    without,
)
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.rules import INTERLEAVED_BATCHES, JobFacts
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.scripts.runs import ProgramRun

LAYOUT = Layout(num_gpus=64, tp=8, pp=4, cp=2, micro_batch=2, global_batch=64)


def run_of(*arguments: str, launcher: tuple[str, ...] = ("python3",), **variables: str) -> ProgramRun:
    return ProgramRun(launcher=launcher, program="pretrain_gpt.py", arguments=arguments, variables=variables)


def options_of(command: str) -> list[str]:
    """Return the words behind the script."""
    words = ParsedCommand.of(command).argv()
    return words[words.index("pretrain_gpt.py") + 1 :]


@pytest.mark.parametrize(("pp", "stages"), [(1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (16, [0, 1, 15])])
def test_the_first_the_second_and_the_last_stage_are_probed(pp: int, stages: list[int]) -> None:
    assert probed_stages(pp) == stages


@pytest.mark.parametrize(("pipeline_first", "ranks"), [(False, [0, 16, 32, 48]), (True, [0, 16, 32, 48])])
def test_ranks_of_a_layout_without_data_parallelism_are_the_same_in_both_orders(
    pipeline_first: bool, ranks: list[int]
) -> None:
    assert [first_rank(LAYOUT, stage, pipeline_first=pipeline_first) for stage in range(4)] == ranks


def test_with_data_parallelism_the_order_of_the_ranks_decides() -> None:
    layout = Layout(num_gpus=64, tp=2, cp=2, pp=4)
    ranks = [[first_rank(layout, stage, pipeline_first=first) for stage in range(4)] for first in (False, True)]
    assert ranks == [[0, 16, 32, 48], [0, 4, 8, 12]]
    for option, rank in (("--use-tp-pp-dp-mapping", 12), ("--bf16", 48)):
        assert fake_rank(run_of(option), layout, 3, Path("r")).rank == rank


@pytest.mark.parametrize(
    ("pp", "job", "probed"), [(1, 1, 1), (1, 64, 4), (2, 64, 4), (4, 64, 8), (4, 8, 8), (4, 3, 3), (16, 512, 32)]
)
def test_as_many_micro_batches_are_run_as_fill_the_pipeline_twice(pp: int, job: int, probed: int) -> None:
    layout = Layout(num_gpus=pp, pp=pp, global_batch=job)
    assert probed_micro_batches(layout) == probed


@pytest.mark.parametrize("pp", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("vp", [2, 3])
@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_an_interleaved_pipeline_gets_a_batch_that_megatron_takes_and_that_fills_it(
    pp: int, vp: int, rounds: int
) -> None:
    layout = Layout(num_gpus=pp, pp=pp, vp=vp, global_batch=rounds * pp)
    probed = probed_micro_batches(layout)
    assert INTERLEAVED_BATCHES.holds(JobFacts(), Layout(num_gpus=pp, pp=pp, vp=vp, global_batch=probed))
    in_flight = 2 * (pp - 1) + (vp - 1) * pp + 1
    assert vp * probed >= min(in_flight, vp * layout.num_micro_batches)


def test_the_command_is_that_of_one_rank_in_a_world_of_all() -> None:
    rank = fake_rank(run_of("--bf16", "--global-batch-size", "64"), LAYOUT, 3, Path("a folder") / "hook")
    line = ParsedCommand.of(rank.command)
    assert (rank.stage, rank.rank, rank.num_micro_batches) == (3, 48, 8)
    expected = {"RANK": "48", "WORLD_SIZE": "64", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    assert expected.items() <= line.assignments().items()
    batch = ["--global-batch-size", "16", "--log-interval", "1"]
    assert options_of(rank.command) == ["--bf16", *batch, "--fake-process-group"]


def test_a_command_that_names_its_own_rank_does_not_win_over_the_probes() -> None:
    rank = fake_rank(run_of(RANK="5", WORLD_SIZE="8", NCCL_DEBUG="INFO"), LAYOUT, 1, Path("r"))
    variables = ParsedCommand.of(rank.command).assignments()
    assert (variables["RANK"], variables["WORLD_SIZE"], variables["NCCL_DEBUG"]) == ("16", "64", "INFO")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["--save", "a", "--bf16"], ["--bf16"]),
        (["--save=a", "--load=b", "--bf16"], ["--bf16"]),
        (["--save_interval", "5", "--rampup_batch_size", "16", "16", "1000", "--lr", "1"], ["--lr", "1"]),
        (["--lr", "-1", "--async-save", "--seed", "3"], ["--lr", "-1", "--seed", "3"]),
        (["--save-retain-interval", "7", "--loader", "x"], ["--save-retain-interval", "7", "--loader", "x"]),
        (["--data-path", "0.3", "save", "0.7", "--load"], ["--data-path", "0.3", "save", "0.7"]),
    ],
)
def test_options_are_left_out_with_all_their_words(given: list[str], kept: list[str]) -> None:
    assert without(given, LEFT_OUT) == kept


def test_nothing_of_a_probe_is_saved_loaded_or_logged_elsewhere() -> None:
    options = ("--save", "x", "--load", "x", "--tensorboard-dir", "t", "--wandb-project", "w", "--exit-interval", "2")
    command = fake_rank(run_of(*options), LAYOUT, 0, Path("r")).command
    assert not {"--save", "--load", "--tensorboard-dir", "--wandb-project", "--exit-interval"} & set(command.split())


@pytest.mark.parametrize(
    ("of_the_command", "of_the_shell", "rest"),
    [("/a b:/c", "/d", "/a b:/c"), (None, "/d", "/d"), (None, None, None), ("", "/d", None)],
)
def test_the_python_path_is_kept_behind_the_hook(
    monkeypatch: pytest.MonkeyPatch, of_the_command: str | None, of_the_shell: str | None, rest: str | None
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if of_the_shell is not None:
        monkeypatch.setenv("PYTHONPATH", of_the_shell)
    run = run_of() if of_the_command is None else run_of(PYTHONPATH=of_the_command)
    command = fake_rank(run, LAYOUT, 0, Path("r")).command
    expected = "r" if rest is None else f"r{os.pathsep}{rest}"
    assert ParsedCommand.of(command).assignments()["PYTHONPATH"] == expected


def test_secrets_of_the_shell_are_not_written_into_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    assert "0123456789abcdef" not in fake_rank(run_of(), LAYOUT, 0, Path("r")).command


def test_the_rank_runs_where_the_users_script_does() -> None:
    run = ProgramRun(
        launcher=("python3",), program="pretrain_gpt.py", arguments=(), variables={}, folder=Path("my tree")
    )
    assert fake_rank(run, LAYOUT, 0, Path("r")).command.startswith("cd 'my tree' && ")


@pytest.mark.parametrize(
    ("launcher", "found"),
    [
        (("python", "-m", "torch.distributed.run", "--nproc-per-node", "8"), "python"),
        (("/opt/venv/bin/python3.12", "-u", "-m", "torch.distributed.launch"), "/opt/venv/bin/python3.12"),
        (("srun", "--ntasks=8", "python3", "-u"), "python3"),
        (("srun", "--container-image=/images/python", "/conda/bin/python", "-m", "x"), "/conda/bin/python"),
    ],
)
def test_the_python_that_a_launcher_names_is_taken(launcher: tuple[str, ...], found: str) -> None:
    assert interpreter(launcher) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("#!/opt/env/bin/python3.12\nimport torch\n", "/opt/env/bin/python3.12"),
        ("#!/usr/bin/env python3\n", "python3"),
        ("#!/bin/sh\nexec something\n", "python3"),
        ("\x7fELF" + "\xff" * 5000, "python3"),
        ("", "python3"),
    ],
)
def test_torchruns_own_first_line_names_its_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, found: str
) -> None:
    torchrun = tmp_path / "torchrun"
    torchrun.write_text(text, encoding="latin-1")
    torchrun.chmod(0o755)
    assert interpreter(("srun", "-N", "2", str(torchrun), "--nproc-per-node", "8")) == found
    monkeypatch.setenv("PATH", str(tmp_path))
    assert interpreter(("torchrun", "--nnodes=2")) == found
    assert interpreter(()) == found


def test_without_any_launcher_the_usual_python_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert interpreter(()) == "python3" and interpreter(("torchrun",)) == "python3"


def test_the_first_the_last_and_the_fullest_stage_are_probed() -> None:
    assert probed_stages(1) == [0]
    assert probed_stages(2) == [0, 1]
    assert probed_stages(8) == [0, 1, 7]


def test_twice_the_stages_are_enough_micro_batches() -> None:
    assert probed_micro_batches(Layout(num_gpus=32, tp=8, pp=4, global_batch=64)) == 8


def test_a_command_runs_in_the_folder_of_its_script() -> None:
    assert in_folder(Path("Megatron-LM"), "python pretrain_gpt.py") == "cd Megatron-LM && python pretrain_gpt.py"


def test_the_first_rank_of_a_stage_follows_the_order() -> None:
    assert first_rank(Layout(num_gpus=64, tp=8, pp=4), 3, pipeline_first=False) == 48


def test_options_are_left_out_with_their_values() -> None:
    assert without(["--load", "ckpt", "--bf16", "--save=there"], frozenset(["--load", "--save"])) == ["--bf16"]
