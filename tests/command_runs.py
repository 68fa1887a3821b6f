"""Runs of single commands in the tests' own process."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from zenith_tune.cli.main import main


class Done(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Done]


def running(command: str, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return what runs `zenithtune COMMAND`."""

    def run(*arguments: str) -> Done:
        with pytest.raises(SystemExit) as ended:
            main([command, *arguments])
        shown = capsys.readouterr()
        return Done(int(ended.value.code or 0), shown.out, shown.err)

    return run


def as_json(done: Done) -> dict[str, Any]:
    assert done.code == 0, done.err
    loaded: dict[str, Any] = json.loads(done.out)
    return loaded
