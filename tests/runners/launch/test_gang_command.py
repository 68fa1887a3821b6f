from __future__ import annotations

import pytest

from zenith_tune.errors import UsageError
from zenith_tune.runners.launch.gang import NODE_RANK, deepspeed_command, gang_command

MEETING = f"--nnodes 2 --node-rank {NODE_RANK} --master-addr n1 --master-port 29511"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "torchrun --nnodes=4 --nproc_per_node 8 --rdzv_backend c10d --rdzv-endpoint=x:1 train.py --nnodes 9",
            f"torchrun {MEETING} --nproc_per_node 8 train.py --nnodes 9",
        ),
        ("python -m torch.distributed.run train.py", f"python -m torch.distributed.run {MEETING} train.py"),
        ("bash -c 'A=1 torchrun train.py | tee log'", f"bash -c 'A=1 torchrun {MEETING} train.py | tee log'"),
        (
            "accelerate launch --num_machines 1 --num_processes 16 train.py",
            f"accelerate launch --num_machines 2 --machine_rank {NODE_RANK} --main_process_ip n1 "
            "--main_process_port 29511 --num_processes 16 train.py",
        ),
        ("bash train.sh --lr 1", "bash train.sh --lr 1"),
        ("python train.py --node $NODE_RANK", "python train.py --node $NODE_RANK"),
    ],
)
def test_each_launcher_learns_its_node_and_where_all_meet(command: str, expected: str) -> None:
    assert gang_command(command, 2, "n1", 29511) == expected


def test_a_plain_command_on_one_node_is_left_as_it_is() -> None:
    for command in ("python train.py", "accelerate launch train.py", "torchrun --standalone train.py"):
        assert gang_command(command, 1, "n1", 29511) == command


@pytest.mark.parametrize(
    ("command", "part"), [("torchrun --standalone train.py", "--standalone"), ("python train.py", "NODE_RANK")]
)
def test_what_cannot_run_on_two_nodes_is_refused_in_one_line(command: str, part: str) -> None:
    with pytest.raises(UsageError, match=part) as caught:
        gang_command(command, 2, "n1", 29511)
    assert "\n" not in str(caught.value)


def test_a_deepspeed_command_gets_the_trials_hosts_in_place_of_its_own() -> None:
    command = "deepspeed -H mine --num_nodes 4 --num_gpus=2 --master_addr x --force_multi train.py --hostfile kept"
    edited = deepspeed_command(command, {"--hostfile": "a b/hosts", "--master_port": "1"}, flags=["--force_multi"])
    assert edited == (
        "deepspeed --hostfile 'a b/hosts' --master_port 1 --num_gpus=2 --force_multi train.py --hostfile kept"
    )


@pytest.mark.parametrize("option", ["--include n1:0,1", "-e n2", "--exclude=n2"])
def test_a_deepspeed_command_that_names_hosts_is_refused(option: str) -> None:
    with pytest.raises(UsageError, match=option.split("=")[0].split()[0]):
        deepspeed_command(f"deepspeed {option} train.py", {"--hostfile": "hosts"})
