from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.requirements import need_module

RANK_ENV = {
    "OMP_NUM_THREADS": "1",  # the ranks share two cores
    "TORCHDYNAMO_DISABLE": "1",
}
RunProgram = Callable[..., Any]


@pytest.fixture(scope="session")
def has_torch() -> None:
    need_module("engines", "torch")


@pytest.fixture
def start(has_torch: None) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python with a program of this repository, warnings being errors."""

    def run(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", *words],
            cwd=ROOT,
            env={**os.environ, **RANK_ENV, **(env or {})},
            capture_output=True,
            text=True,
            timeout=500,
        )

    return run


@pytest.fixture
def run_program(start: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> RunProgram:
    """Run one of the programs beside this file, and return the JSON that it prints."""

    def run(name: str, *args: str) -> Any:
        done = start("-m", f"tests.mimo.{name}_program", *args, env={"TMPDIR": str(tmp_path)})
        assert done.returncode == 0, done.stderr[-3000:]
        (tmp_path / "stderr").write_text(done.stderr)
        # Libraries may print lines of their own before.
        return json.loads(done.stdout.splitlines()[-1])

    return run
