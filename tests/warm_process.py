"""Programs in forks of a process that has their imports done: as separate as a new interpreter, without its seconds.

All workers of a run share the servers whose forks these are: one for `zenithtune` itself, one for programs of ours with
torch, and one for what users train with, whose forks stand behind a program that is called like an interpreter.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = "WARM_COMMANDS"
"""The variable with the address of the server for `zenithtune`."""
TORCH = "WARM_TORCH"
"""The variable with the address of the server for programs with torch; there, warnings are errors."""
TORCH_ENV = {
    "OMP_NUM_THREADS": "1",  # the ranks share two cores
    "TORCHDYNAMO_DISABLE": "1",
    "DS_ACCELERATOR": "cpu",
}
ENGINES = "WARM_ENGINES"
"""The variable with the address of the server behind `warm_python`."""
IMPORTED = {
    COMMANDS: ["tests.warm_command"],
    TORCH: ["torch._dynamo", "zenith_mimo.checkpoint"],
    ENGINES: ["torch._dynamo", "torch.distributed.fsdp", "transformers.trainer", "deepspeed",
              "transformers.models.llama.modeling_llama", "megatron.core.models.gpt", "lightning.pytorch"],
}  # fmt: skip
MOST_BYTES = 1 << 20


def start_server(name: str) -> None:
    """Have a server listen at the address in the variable of this name; it ends with the last that knows it."""
    if name in os.environ:
        return
    folder = tempfile.TemporaryDirectory()  # a socket's path must be short
    os.environ[name] = address = f"{folder.name}/socket"
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path, **({} if name == COMMANDS else TORCH_ENV)}
    strict = ["-W", "error"] if name == TORCH else []
    words = [sys.executable, *strict, "-m", "tests.warm_process", address, *IMPORTED[name]]
    server = subprocess.Popen(words, cwd=ROOT, env=env, start_new_session=True, stdin=subprocess.PIPE)

    @atexit.register
    def end() -> None:
        server.communicate()  # closes its input, which ends it
        folder.cleanup()


def warm_python() -> str:
    """Return a program that does what an interpreter does, in a fork that has torch and the frameworks imported.

    A launcher that runs in one starts its ranks in others. It ends with its fork, and its fork with it.
    """
    start_server(ENGINES)
    path = Path(os.environ[ENGINES]).with_name("python")
    if not path.exists():
        own = path.with_name(f"python{os.getpid()}")
        own.write_text(STAND_IN.format(executable=sys.executable, file=__file__, path=str(path)))
        own.chmod(0o700)
        own.rename(path)  # whole, whichever worker was first
    return str(path)


STAND_IN = """#!{executable} -IS
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("warm_process", {file!r})
warm_process = importlib.util.module_from_spec(spec)
spec.loader.exec_module(warm_process)
warm_process.stand_in({path!r}, {executable!r}, sys.argv[1:])
"""
PLAIN_OPTIONS = {"-u", "-B"}
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def stand_in(path: str, executable: str, words: list[str]) -> NoReturn:
    """Be the interpreter in the eyes of whoever started it."""
    while words and words[0] in PLAIN_OPTIONS:
        words = words[1:]
    if not words or (words[0].startswith("-") and words[0] not in ("-m", "-c")):
        os.execv(executable, [executable, *words])
    parent, env = os.getppid(), {**os.environ, ENGINES: str(Path(path).with_name("socket")), "WARM_PYTHON": path}
    process = WarmProcess(ENGINES, words, folder=Path.cwd(), env=env, out=1, err=2)
    for signum in PASSED_ON:
        signal.signal(signum, lambda signum, _: process.send_signal(signum))
    code = None
    while code is None and os.getppid() == parent:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(0.5)
    if code is None or code < 0:
        signum = signal.SIGKILL if code is None else signal.Signals(-code)
        if signum != signal.SIGKILL:
            signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)
    os._exit(code or 0)


class WarmProcess:
    """What `python WORDS` would run; has as much of subprocess.Popen as tests use."""

    def __init__(
        self, name: str, words: Sequence[str], *, folder: Path, env: Mapping[str, str], out: int, err: int
    ) -> None:
        self.args = list(words)
        self.returncode: int | None = None
        self._connection = socket.socket(socket.AF_UNIX)
        _connect(self._connection, env.get(name) or os.environ[name])
        text = json.dumps({"words": self.args, "env": dict(env), "folder": str(folder)}).encode()
        assert len(text) < MOST_BYTES
        descriptors = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [out, err]))]
        self._connection.sendmsg([len(text).to_bytes(4, "big")], descriptors)
        self._connection.sendall(text)
        self.pid = self._number()

    def _number(self) -> int:
        return int.from_bytes(self._connection.recv(4, socket.MSG_WAITALL), "big", signed=True)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = self._number()
            self._connection.close()
        return self.returncode

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class WarmCommand(WarmProcess):
    """`python WORDS` in a folder, with zenith_tune imported."""

    def __init__(
        self, words: Sequence[str], folder: Path, environment: Mapping[str, str], streams: str | None = None
    ) -> None:
        """`streams` is the folder of what it prints."""
        start_server(COMMANDS)
        place = Path(streams or tempfile.mkdtemp(dir=folder.parent))
        self._out, self._err = place / "out", place / "err"
        with self._out.open("w") as out, self._err.open("w") as err:
            files = {"out": out.fileno(), "err": err.fileno()}
            super().__init__(COMMANDS, words, folder=folder, env=environment, **files)
        self.stdout = self
        self._num_read = 0

    def wait(self, timeout: float | None = None) -> int:
        try:
            return super().wait(timeout)
        except subprocess.TimeoutExpired as late:
            late.stdout, late.stderr = self._out.read_bytes(), self._err.read_bytes()
            raise

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        return self._out.read_bytes()[self._num_read :].decode(), self._err.read_text()

    def readline(self) -> str:
        """Return the next line of the output, as soon as it is there."""
        is_over = False
        while b"\n" not in (left := self._out.read_bytes()[self._num_read :]) and not is_over:
            is_over = self.poll() is not None  # what it printed last is looked at once more
            time.sleep(0.01)
        line = left[: left.find(b"\n") + 1 or None]
        self._num_read += len(line)
        return line.decode()


def zenithtune_words(arguments: Sequence[str]) -> list[str]:
    """Return what Python is called with for `zenithtune ARGUMENTS`."""
    return ["-c", f"from zenith_tune.cli.main import main; main({list(arguments)!r})"]


def run_command(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run `zenithtune ARGUMENTS` in a folder, as subprocess.run would."""
    return run_python(zenithtune_words(arguments), folder, environment, timeout_s)


def run_python(
    words: Sequence[str], folder: Path, environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run `python WORDS` in a folder, as subprocess.run would, with zenith_tune imported."""
    with tempfile.TemporaryDirectory() as streams:
        command = WarmCommand(words, folder, environment, streams)
        try:
            out, err = command.communicate(timeout_s)
        finally:
            command.kill()
            code = command.wait()
    return subprocess.CompletedProcess(command.args, code, out, err)


def _connect(connection: socket.socket, address: str) -> None:
    """Connect to a server that may still be loading, beside whatever else the machine does."""
    deadline = time.monotonic() + 500
    while True:
        try:
            return connection.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            assert time.monotonic() < deadline, f"no server at {address}"
            time.sleep(0.05)


def _serve(address: str, modules: Sequence[str]) -> NoReturn:
    for name in modules:
        with contextlib.suppress(ModuleNotFoundError), warnings.catch_warnings():
            if not sys.warnoptions:
                warnings.simplefilter("ignore")
            importlib.import_module(name)
    gc.freeze()  # nothing that was imported is garbage, which forks need not look for
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    asked: dict[int, socket.socket] = {}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        while True:
            ready = select.select([listener, sys.stdin, woken], [], [], 0.5 if asked else None)[0]
            _end_the_forsaken(asked)
            if sys.stdin in ready:
                os.killpg(0, signal.SIGKILL)  # its input ends with whoever started it, and so do its forks
            if woken in ready:
                os.read(woken, MOST_BYTES)
                _tell_of_ends(asked)
            if listener in ready:
                connection, _ = listener.accept()
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for file in (listener, *asked.values()):
                        file.close()
                    os.closerange(woken, wake + 1)
                    _become(connection)
                _send(connection, pid)
                asked[pid] = connection


def _end_the_forsaken(asked: dict[int, socket.socket]) -> None:
    """End forks whose clients have ended."""
    poll = select.poll()
    pids = {connection.fileno(): pid for pid, connection in asked.items()}
    for file in pids:
        poll.register(file, select.POLLRDHUP)
    for file, _ in poll.poll(0):
        os.kill(pids[file], signal.SIGKILL)


def _tell_of_ends(asked: dict[int, socket.socket]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with asked.pop(ended[0]) as connection:
                _send(connection, os.waitstatus_to_exitcode(ended[1]))


def _send(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(number.to_bytes(4, "big", signed=True))


def _become(connection: socket.socket) -> NoReturn:
    size, descriptors, _, _ = socket.recv_fds(connection, 4, 2)
    text = b""
    while len(text) < int.from_bytes(size, "big"):
        text += connection.recv(MOST_BYTES)
    connection.close()
    asked = json.loads(text)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, target in zip((0, 1, 2), (nothing, *descriptors), strict=True):
        os.dup2(target, number)
        os.close(target)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.BufferedWriter(io.FileIO(number, "w", closefd=False)), "utf-8") for number in (1, 2)
    )
    os.environ.clear()
    os.environ.update(asked["env"])
    own = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[:0] = own
    os.chdir(asked["folder"])
    tempfile.tempdir = None  # it is looked up in the new environment
    if "WARM_PYTHON" in os.environ:
        sys.executable = os.environ["WARM_PYTHON"]
    if any((Path(folder) / "sitecustomize.py").exists() for folder in own):
        sys.modules.pop("sitecustomize", None)  # Debian's Python has one of its own
        importlib.import_module("sitecustomize")
    code = _run(asked["words"])
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 255)


def _run(words: list[str]) -> int:
    try:
        sys.path.insert(0, str(Path(words[0]).resolve().parent) if words[0] not in ("-m", "-c") else "")
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
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
    _serve(sys.argv[1], sys.argv[2:])
