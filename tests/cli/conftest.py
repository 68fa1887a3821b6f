from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_runs import Run, running
from tests.requirements import need_module


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `zenithtune checkpoint` in an empty folder, in the process that has loaded torch."""
    need_module("engines", "zenith_checkpoint")
    monkeypatch.chdir(tmp_path)
    return running("checkpoint", capsys)
