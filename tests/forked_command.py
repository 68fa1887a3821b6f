"""Runs of the whole command line in a forked process: as separate as a new interpreter, but with its imports done."""

from __future__ import annotations

import io
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
_CONTEXT = multiprocessing.get_context("forkserver")


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


def run_forked(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run `zenithtune ARGUMENTS` in a folder, as subprocess.run would."""
    with TemporaryDirectory() as streams:
        out, err = Path(streams, "out"), Path(streams, "err")
        process = _CONTEXT.Process(target=_main, args=(arguments, folder, dict(environment), out, err))
        process.start()
        try:
            process.join(timeout_s)
            if process.exitcode is None:
                raise subprocess.TimeoutExpired(list(arguments), timeout_s, out.read_bytes(), err.read_bytes())
        finally:
            process.kill()
            process.join()
        done = subprocess.CompletedProcess(list(arguments), process.exitcode, out.read_text(), err.read_text())
        process.close()
        return done


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
