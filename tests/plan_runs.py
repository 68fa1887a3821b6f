"""Runs of `zenithtune plan` in the tests' own process."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from zenith_tune.cli import main

LLAMA = ("--model", "llama3-8b", "--cluster", "h100x8", "--gbs", "64", "--seq", "8192")
LARGE = ("--model", "llama3-70b", "--cluster", "h100x64", "--gbs", "512", "--seq", "8192")


class Done(NamedTuple):
    code: int
    out: str
    err: str


Plan = Callable[..., Done]


def planning(capsys: pytest.CaptureFixture[str]) -> Plan:
    """Return what runs the command."""

    def run(*arguments: str) -> Done:
        with pytest.raises(SystemExit) as ended:
            main(["plan", *arguments])
        shown = capsys.readouterr()
        return Done(int(ended.value.code or 0), shown.out, shown.err)

    return run


def as_json(done: Done) -> dict[str, Any]:
    assert done.code == 0, done.err
    loaded: dict[str, Any] = json.loads(done.out)
    return loaded
