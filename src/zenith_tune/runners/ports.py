"""A port of its own for each trial that runs beside others, and the command that uses it."""

from __future__ import annotations

import contextlib
import socket
import threading

from zenith_tune.command_line.rank_launcher import ACCELERATE, DEEPSPEED, TORCHRUN, RankLauncher

_OPTIONS = {TORCHRUN: "--master-port", DEEPSPEED: "--master_port", ACCELERATE: "--main_process_port"}
_FINDS_ITS_OWN = ("--standalone", "--rdzv-endpoint", "--rdzv_endpoint")
"""With these torchrun meets its ranks elsewhere than at its port."""
_TRIES = 100


class Ports:
    """Hand out ports that are free and that no other trial was handed."""

    def __init__(self) -> None:
        self._taken: set[int] = set()
        self._lock = threading.Lock()

    def take(self) -> int:
        """Return a port; it is the caller's until it is given back."""
        with self._lock:
            for _ in range(_TRIES):
                with contextlib.closing(socket.socket()) as probe:
                    probe.bind(("127.0.0.1", 0))
                    port = int(probe.getsockname()[1])
                if port not in self._taken:
                    self._taken.add(port)
                    return port
        raise OSError("no free port was found")

    def give_back(self, port: int) -> None:
        """Take a port back."""
        with self._lock:
            self._taken.discard(port)


def with_port(command: str, port: int) -> str:
    """Return the command with its launcher meeting at `port`; one without a launcher finds it in MASTER_PORT.

    >>> with_port("deepspeed --num_gpus 2 --master_port 29500 train.py", 41234)
    'deepspeed --master_port 41234 --num_gpus 2 train.py'
    """
    launcher = RankLauncher.find(command)
    if launcher is None or any(launcher.option(name) is not None for name in _FINDS_ITS_OWN):
        return command
    name = _OPTIONS[launcher.kind]
    return launcher.with_options({name: str(port)})
