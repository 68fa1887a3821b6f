"""What runs on one node of a Ray cluster for a trial: the command's processes, and a guard that outlives this one.

It is sent to the nodes by value, which need not have this package: it uses nothing but Python's own modules.
"""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

_MAX_HELD_BYTES = 4 << 20
_MAX_READ_BYTES = 1 << 20
# The guard is no child of the worker, because Ray kills those when the worker ends. It reads until the worker is gone,
# whatever became of it, and then ends the trial's processes.
_GUARD = 'exec 3<&0; { exec <&3 3<&-; cat >/dev/null; /bin/sh -c "$0" end-marked "$@"; } >/dev/null 2>&1 &'


class RayWorker:
    """One command on this node; its methods are called from afar, each in a thread of its own."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held = bytearray()
        self._num_taken = 0
        self._exit_code: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        self._end_argv: list[str] = []
        self._environment = dict(os.environ)

    def address(self) -> dict[str, str]:
        """Return where this node is, a port that is free on it, and the GPUs that Ray gave."""
        ray: Any = importlib.import_module("ray")
        with closing(socket.socket()) as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        context = ray.get_runtime_context()
        return {
            "node_id": context.get_node_id(),
            "address": ray.util.get_node_ip_address(),
            "port": str(port),
            "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        }

    def start(
        self, command: str, environment: Mapping[str, str], folder: str, end_script: str, end_arguments: list[str]
    ) -> None:
        """Start the command; `end_script` is what ends all of its processes."""
        own = {name: value for name, value in self._environment.items() if name != "OMP_NUM_THREADS"}
        self._end_argv = _end_argv(end_script, end_arguments)
        if not os.path.isdir(folder):  # noqa: PTH112 - nothing of the package's own style can be counted on here
            self._held += f"zenithtune: {socket.gethostname()} has no folder {folder}\n".encode()
            self._exit_code = 1
            return
        self._watch_over(end_script, end_arguments)
        self._process = subprocess.Popen(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=folder,
            env={**own, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        collector = threading.Thread(target=self._collect, args=(self._process,), daemon=True)
        collector.start()
        threading.Thread(target=self._await_end, args=(self._process, collector), daemon=True).start()

    def read(self, position: int, wait_s: float) -> tuple[bytes, int | None]:
        """Return what was printed from `position` on, and the exit code once the command is over and all was read.

        What stands before `position` has arrived; the rest is kept, in case the answer is lost on its way.
        """
        deadline = time.monotonic() + wait_s
        with self._changed:
            del self._held[: position - self._num_taken]
            self._num_taken = position
            self._changed.notify_all()
            while not self._held and self._exit_code is None and time.monotonic() < deadline:
                self._changed.wait(max(0.0, deadline - time.monotonic()))
            text = bytes(self._held[:_MAX_READ_BYTES])
            return text, self._exit_code if len(text) == len(self._held) else None

    def end(self, end_script: str, end_arguments: list[str]) -> None:
        """End the command and everything that it started; returns when all of it is gone."""
        argv = _end_argv(end_script, end_arguments)
        subprocess.run(argv, env=self._environment, stdin=subprocess.DEVNULL, check=False, start_new_session=True)
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def _watch_over(self, end_script: str, end_arguments: list[str]) -> None:
        reader, self._lifeline = os.pipe()
        argv = ["/bin/sh", "-c", _GUARD, end_script, *end_arguments]
        subprocess.run(argv, stdin=reader, env=self._environment, check=True, start_new_session=True)
        os.close(reader)

    def _collect(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        while text := os.read(process.stdout.fileno(), 1 << 16):
            with self._changed:
                self._changed.wait_for(lambda: len(self._held) < _MAX_HELD_BYTES)
                self._held += text
                self._changed.notify_all()

    def _await_end(self, process: subprocess.Popen[bytes], collector: threading.Thread) -> None:
        code = process.wait()
        # What it left in the background would hold the pipe open, and is no part of the trial any more.
        subprocess.run(self._end_argv, env=self._environment, stdin=subprocess.DEVNULL, check=False)
        collector.join()
        with self._changed:
            self._exit_code = code if code >= 0 else 128 - code
            self._changed.notify_all()


def _end_argv(end_script: str, end_arguments: list[str]) -> list[str]:
    return ["/bin/sh", "-c", end_script, "end-marked", *end_arguments]
