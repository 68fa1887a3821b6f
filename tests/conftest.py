from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FAKE_TRAINER = ROOT / "examples" / "fake_megatron_train.py"


@pytest.fixture
def zenithtune(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the real command line in an empty folder."""

    def run(*args: str, timeout: float = 120, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "zenith_tune.cli", *args],
            cwd=tmp_path,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run
