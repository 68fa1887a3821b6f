"""Runs of the whole command line in a forked process: as separate as a new interpreter, but with its imports done."""

from __future__ import annotations

import contextlib
import functools
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path
from tempfile import mkdtemp

ROOT = Path(__file__).resolve().parent.parent
_CONTEXT = multiprocessing.get_context("forkserver")


@functools.cache
def start_server() -> None:
    """Start the process whose forks run the commands."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), before]))
    _CONTEXT.set_forkserver_preload(["tests.warm_command"])
    forkserver.ensure_running()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


class ForkedCommand:
    """Run `zenithtune ARGUMENTS` in a folder; has as much of subprocess.Popen as tests use."""

    def __init__(self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        start_server()
        streams = Path(mkdtemp(dir=folder.parent))
        self.args = list(arguments)
        self.returncode: int | None = None
        self._out, self._err = streams / "out", streams / "err"
        given = (arguments, folder, dict(environment), self._out, self._err)
        self._process = _CONTEXT.Process(target=_main, args=given)
        self._process.start()
        self.pid = self._process.pid or 0
        self.stdout = self
        self._num_read = 0

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._process.join(timeout)
            if self._process.exitcode is None:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0, *map(_read, (self._out, self._err)))
            self.returncode = self._process.exitcode
            self._process.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        return _read(self._out)[self._num_read :].decode(), _read(self._err).decode()

    def readline(self) -> str:
        """Return the next line of the output, as soon as it is there."""
        is_over = False
        while b"\n" not in (left := _read(self._out)[self._num_read :]) and not is_over:
            is_over = self.poll() is not None  # what it printed last is looked at once more
            time.sleep(0.01)
        line = left[: left.find(b"\n") + 1 or None]
        self._num_read += len(line)
        return line.decode()

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""  # one that was killed at once has written nothing


def run_forked(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run `zenithtune ARGUMENTS` in a folder, as subprocess.run would."""
    command = ForkedCommand(arguments, folder, environment)
    try:
        out, err = command.communicate(timeout_s)
    finally:
        command.kill()
        code = command.wait()
    return subprocess.CompletedProcess(command.args, code, out, err)


def _main(arguments: Sequence[str], folder: Path, environment: dict[str, str], out: Path, err: Path) -> None:
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    os.chdir(folder)
    for number, target in ((0, Path(os.devnull)), (1, out), (2, err)):
        opened = os.open(target, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.BufferedWriter(io.FileIO(number, "w", closefd=False)), "utf-8") for number in (1, 2)
    )
    from zenith_tune.cli.main import main

    main(list(arguments))
