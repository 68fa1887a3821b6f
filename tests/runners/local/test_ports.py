from __future__ import annotations

import socket

from zenith_tune.runners.local.room import LocalRoom


def test_ports_are_free_and_never_handed_out_twice() -> None:
    room = LocalRoom([], 50)
    taken = [room.take().port for _ in range(50)]
    assert len(set(taken)) == 50
    with socket.socket() as server:
        server.bind(("127.0.0.1", taken[0]))
