from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.requirements import need_module
from tests.warm_process import TORCH, TORCH_ENV, WarmProcess, start_server

Start = Callable[..., subprocess.CompletedProcess[str]]
RunProgram = Callable[..., Any]


@pytest.fixture(scope="session")
def has_torch() -> None:
    need_module("engines", "torch")


@pytest.fixture
def start(has_torch: None) -> Start:
    """Run a new Python with a program of this repository, warnings being errors."""

    def run(
        *words: str, env: dict[str, str] | None = None, python: tuple[str, ...] = (sys.executable, "-W", "error")
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*python, *words],
            cwd=ROOT,
            env={**os.environ, **TORCH_ENV, **(env or {})},
            capture_output=True,
            text=True,
            timeout=500,
        )

    return run


@pytest.fixture(scope="session")
def warm_env(has_torch: None) -> dict[str, str]:
    """Return the environment of programs that run in forks of a process with torch imported."""
    start_server(TORCH)
    return {**os.environ, **TORCH_ENV}


@pytest.fixture
def start_warm(warm_env: dict[str, str], tmp_path: Path) -> Start:
    """Run a program as `start` does, without the seconds that a new interpreter takes to import torch."""

    def run(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            streams = {"out": out.fileno(), "err": err.fileno()}
            code = WarmProcess(TORCH, words, env={**warm_env, **(env or {})}, folder=ROOT, **streams).wait()
            for stream in (out, err):
                stream.seek(0)
            return subprocess.CompletedProcess(words, code, out.read(), err.read())

    return run


@pytest.fixture
def run_program(start_warm: Start, tmp_path: Path) -> RunProgram:
    """Run one of the programs beside this file, and return the JSON that it prints."""

    def run(name: str, *args: str) -> Any:
        done = start_warm("-m", f"tests.mimo.{name}_program", *args, env={"TMPDIR": str(tmp_path)})
        assert done.returncode == 0, done.stderr[-3000:]
        (tmp_path / "stderr").write_text(done.stderr)
        # Libraries may print lines of their own before.
        return json.loads(done.stdout.splitlines()[-1])

    return run
