"""Starts tuners that are processes of their own, but load the program only once: each is a fork of this one.

Called with a folder, a number and the arguments of one command line. Tuner I writes out<I> and err<I>; exit_codes holds
one line for each.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path

import optuna  # noqa: F401 - loaded here, for all tuners
import psycopg  # noqa: F401
import sqlalchemy.dialects.postgresql.psycopg  # noqa: F401

from tests.toy_preset import ToyPreset
from zenith_tune.cli import main as cli
from zenith_tune.doctor import diagnosis  # noqa: F401
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.record import record  # noqa: F401
from zenith_tune.report import json_lines  # noqa: F401
from zenith_tune.report.terminal import terminal  # noqa: F401
from zenith_tune.runners.local import runner  # noqa: F401
from zenith_tune.strategies import random  # noqa: F401
from zenith_tune.study.parameters import Value


@PresetRegistry.register("last-word")
class LastWordPreset(ToyPreset):
    """Put a number behind the command, which runs without one as well."""

    def __init__(self, *, n: int) -> None:
        super().__init__(range(n))

    def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
        return f"{command} {params['x']}"


def tune(folder: Path, index: int, arguments: list[str]) -> int:
    """Be one tuner, and return its exit code."""
    for name, stream in (("out", 1), ("err", 2)):
        os.dup2(os.open(folder / f"{name}{index}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    try:
        cli.main(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 70
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def main() -> None:
    """Fork, and wait for all."""
    folder, arguments = Path(sys.argv[1]), sys.argv[3:]
    pids = []
    for index in range(int(sys.argv[2])):
        pid = os.fork()
        if not pid:
            os._exit(tune(folder, index, arguments))
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    (folder / "exit_codes").write_text("".join(f"{code}\n" for code in codes))


if __name__ == "__main__":
    main()
