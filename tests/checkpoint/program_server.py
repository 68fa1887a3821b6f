"""Runs of programs that use Megatron Core, each in a fork of one process: to import it takes longer than most of them.

A request is a line of JSON on stdin, the program and its options; the answer is a line with the exit code.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from tests.engines.conftest import ENGINE_ENV

PROGRAMS = ("megatron_core_program", "megatron_hf_program", "megatron_optimizer_program")
LIMIT_S = 500


class Programs:
    """Ask a server for runs of the programs beside this file."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        self._server = server

    def run(self, program: str, *options: str, folder: Path) -> None:
        """Run a program in a folder, and fail with the end of what it wrote where it does."""
        assert self._server.stdin is not None and self._server.stdout is not None
        errors = folder / "stderr"
        request = {"program": program, "options": [*options, "--folder", str(folder)], "errors": str(errors)}
        print(json.dumps(request), file=self._server.stdin, flush=True)
        assert self._server.stdout.readline() == "0\n", errors.read_text()[-3000:]


@contextlib.contextmanager
def serve_programs() -> Iterator[Programs]:
    """Start the process whose forks run the programs."""
    with subprocess.Popen(
        [sys.executable, "-m", __name__],
        env={**os.environ, **ENGINE_ENV},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        yield Programs(server)
        server.communicate()


def _run(program: str, options: list[str], errors: Path) -> int:
    """Return the exit code of a program, run in a fork."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with errors.open("w") as stream:
        for number in (1, 2):
            os.dup2(stream.fileno(), number)
    signal.alarm(LIMIT_S)
    sys.argv = [program, *options]
    try:
        importlib.import_module(f"tests.checkpoint.{program}").main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def main() -> None:
    importlib.import_module("torch._dynamo")  # which the ranks of each program would import
    for program in PROGRAMS:
        importlib.import_module(f"tests.checkpoint.{program}")
    gc.freeze()  # Megatron collects garbage as it loads, which all that was imported is none of
    for line in sys.stdin:
        request = json.loads(line)
        print(_run(request["program"], request["options"], Path(request["errors"])), flush=True)


if __name__ == "__main__":
    main()
