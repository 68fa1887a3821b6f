from __future__ import annotations

import socket

from zenith_tune.runners.local.room import Ports


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
