from __future__ import annotations

import socket

import pytest

from zenith_tune.runners.ports import Ports, with_port


def test_ports_are_free_and_never_handed_out_twice() -> None:
    ports = Ports()
    taken = [ports.take() for _ in range(50)]
    assert len(set(taken)) == 50
    with socket.socket() as server:
        server.bind(("127.0.0.1", taken[0]))


def test_a_port_that_came_back_may_be_handed_out_again() -> None:
    ports = Ports()
    port = ports.take()
    ports.give_back(port)
    assert ports.take()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("torchrun --nproc-per-node 2 t.py", "torchrun --master-port 7 --nproc-per-node 2 t.py"),
        ("torchrun --master_port=1 t.py", "torchrun --master-port 7 t.py"),
        ("deepspeed --num_gpus 2 t.py", "deepspeed --master_port 7 --num_gpus 2 t.py"),
        ("accelerate launch t.py", "accelerate launch --main_process_port 7 t.py"),
        ("torchrun --standalone t.py", "torchrun --standalone t.py"),
        ("torchrun --rdzv-endpoint=h:1 t.py", "torchrun --rdzv-endpoint=h:1 t.py"),
        ("bash train.sh", "bash train.sh"),
    ],
)
def test_a_launcher_meets_at_the_trials_own_port(command: str, expected: str) -> None:
    assert with_port(command, 7) == expected
