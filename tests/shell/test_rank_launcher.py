from __future__ import annotations

import pytest

from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.rank_launcher import ACCELERATE, DEEPSPEED, TORCHRUN, RankLauncher, last_option


def found(command: str) -> RankLauncher:
    launcher = ParsedCommand.of(command).launcher
    assert launcher is not None
    return launcher


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("torchrun --nproc-per-node 2 t.py", TORCHRUN),
        ("/opt/env/bin/torchrun t.py", TORCHRUN),
        ("python3 -m torch.distributed.run --nproc_per_node=2 t.py", TORCHRUN),
        ("FOO=1 deepspeed --num_gpus 2 t.py", DEEPSPEED),
        ("python -m deepspeed.launcher.runner t.py", DEEPSPEED),
        ("srun -N 2 accelerate launch t.py", ACCELERATE),
        ("accelerate-launch t.py", ACCELERATE),
        ("bash -c 'cd /a && torchrun t.py --lr 1'", TORCHRUN),
    ],
)
def test_the_launcher_is_found_behind_others(command: str, kind: str) -> None:
    assert found(command).kind == kind


@pytest.mark.parametrize("command", ["python t.py --torchrun", "bash train.sh", "accelerate config", "a; b; c"])
def test_a_command_without_a_launcher_has_none(command: str) -> None:
    assert ParsedCommand.of(command).launcher is None


def test_options_of_the_script_are_not_the_launchers() -> None:
    launcher = found("torchrun --nnodes=2 --nproc_per_node 4 t.py --nnodes 9 --master-port 1")
    assert launcher.option("--nnodes") == "2"
    assert launcher.option("--nproc-per-node") == "4"
    assert launcher.option("--master-port") is None


def test_an_option_replaces_what_is_there_in_any_spelling() -> None:
    launcher = found("torchrun --master_port=29500 --nnodes 1 t.py --master_port 7")
    assert launcher.with_options({"--master-port": "4"}) == "torchrun --master-port 4 --nnodes 1 t.py --master_port 7"


def test_options_are_taken_out() -> None:
    launcher = found("deepspeed --include localhost:0,1 --num_nodes 2 t.py")
    assert (
        launcher.with_options({"--hostfile": "h"}, without=("--include",))
        == "deepspeed --hostfile h --num_nodes 2 t.py"
    )


def test_inside_quotes_the_inner_command_is_edited() -> None:
    launcher = found("bash -c 'cd /a && torchrun t.py' | tee log")
    assert launcher.with_options({"--master-port": "4"}) == "bash -c 'cd /a && torchrun --master-port 4 t.py' | tee log"


def test_a_flag_in_front_of_the_script_does_not_swallow_it() -> None:
    launcher = found("torchrun --standalone train.py --lr 1")
    assert launcher.option("--standalone") == ""
    assert launcher.with_options({}, without=("--standalone",)) == "torchrun train.py --lr 1"


def test_a_path_is_put_in_front_of_the_program() -> None:
    assert (
        ParsedCommand.of("srun python train.py").started.with_path("PYTHONPATH", "lib")
        == "srun env PYTHONPATH=lib${PYTHONPATH:+:$PYTHONPATH} python train.py"
    )


def test_the_last_value_of_an_option_counts() -> None:
    assert last_option(["srun", "-N", "2", "torchrun", "--nproc_per_node=8"], "--nproc-per-node") == "8"
