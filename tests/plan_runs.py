"""Runs of `zenithtune plan` in the tests' own process."""

from __future__ import annotations

import pytest

from tests.command_runs import Done as Done
from tests.command_runs import Run, running
from tests.command_runs import as_json as as_json

LLAMA = ("--model", "llama3-8b", "--cluster", "h100x8", "--gbs", "64", "--seq", "8192")
LARGE = ("--model", "llama3-70b", "--cluster", "h100x64", "--gbs", "512", "--seq", "8192")

Plan = Run


def planning(capsys: pytest.CaptureFixture[str]) -> Plan:
    """Return what runs the command."""
    return running("plan", capsys)
