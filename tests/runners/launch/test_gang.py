"""The examples of gang."""

from __future__ import annotations

from zenith_tune.runners.launch.gang import gang_command, most_gangs, portable


def test_each_node_starts_the_command_with_its_number() -> None:
    assert (
        gang_command("torchrun train.py", 2, "n1", 29511)
        == "torchrun --nnodes 2 --node-rank ZENITHTUNE-NODE-RANK --master-addr n1 --master-port 29511 train.py"
    )


def test_gangs_fit_into_rooms() -> None:
    assert most_gangs([4, 4], 1) == 8
    assert most_gangs([4, 1], 2) == 1
    assert most_gangs([2, 2, 2], 2) == 3


def test_only_portable_variables_are_taken_along() -> None:
    assert portable({"PATH": "/bin", "SSH_TTY": "/dev/pts/1", "NCCL_DEBUG": "INFO", "BASH_FUNC_x%%": "() {"}) == {
        "PATH": "/bin",
        "NCCL_DEBUG": "INFO",
    }
