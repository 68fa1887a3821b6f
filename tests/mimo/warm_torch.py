"""Programs in forks of one process that has torch imported, which takes seconds of a core in each new interpreter."""

from __future__ import annotations

import array
import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "WARM_TORCH"
"""The variable with the server's socket."""
IMPORTED = ("torch._dynamo", "zenith_tune.mimo.checkpoint")
MOST_BYTES = 1 << 20


@contextlib.contextmanager
def warm_torch(address: Path, env: Mapping[str, str]) -> Iterator[None]:
    """Have a server listen, warnings being errors there; its variables are set before torch is imported."""
    words = [sys.executable, "-W", "error", "-m", "tests.mimo.warm_torch", str(address)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=ROOT, env=env, start_new_session=True, stdin=pipe, stdout=pipe) as server:
        assert server.stdout is not None and server.stdout.readline() == b"ready\n"
        yield
    # Leaving the block closes its input, which ends it.


def run_warm(words: list[str], *, env: Mapping[str, str], folder: Path, out: int, err: int) -> int:
    """Run what `python WORDS` would, and return its exit code; what was killed has 137."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(env[ADDRESS])
        text = json.dumps({"words": words, "env": dict(env), "folder": str(folder)}).encode()
        assert len(text) < MOST_BYTES
        descriptors = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [out, err]))]
        connection.sendmsg([len(text).to_bytes(4, "big")], descriptors)
        connection.sendall(text)
        answer = connection.recv(1)
    return answer[0] if answer else 137


def _serve(address: str) -> NoReturn:
    for name in IMPORTED:
        importlib.import_module(name)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        signal.signal(signal.SIGCHLD, _reap)
        print("ready", flush=True)
        while True:
            if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:
                os.killpg(0, signal.SIGKILL)  # its input ends with whoever started it, and so do its forks
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _answer(connection)
            connection.close()


def _reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _answer(connection: socket.socket) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, descriptors, _, _ = socket.recv_fds(connection, 4, 2)
    text = b""
    while len(text) < int.from_bytes(size, "big"):
        text += connection.recv(MOST_BYTES)
    asked = json.loads(text)
    for number, target in zip((1, 2), descriptors, strict=True):
        os.dup2(target, number)
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["folder"])
    tempfile.tempdir = None  # it is looked up in the new environment
    code = _run(asked["words"])
    sys.stdout.flush()
    sys.stderr.flush()
    connection.send(bytes([code & 255]))
    os._exit(0)


def _run(words: list[str]) -> int:
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            exec(words[1], {"__name__": "__main__"})
        else:
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return 1 if isinstance(end.code, str) else end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    _serve(sys.argv[1])
