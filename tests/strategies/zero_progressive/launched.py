"""A stand-in for the `deepspeed` command on PATH, and a study of a job that it starts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.standins import ds_train
from tests.study_tools import Witness
from zenith_tune import PresetTuner

SCRIPT = Path(ds_train.__file__)


def put_launcher_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `deepspeed` the stand-in."""
    program = folder / "bin" / "deepspeed"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{SCRIPT}" --launcher "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(folder)


def write_config(folder: Path, values: dict[str, Any], name: str = "ds.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(values))
    return path


def tune(folder: Path, command: str, tune_args: dict[str, Any] | None = None, **options: Any) -> PresetTuner:
    options.setdefault("listener", Witness())
    options.setdefault("baseline", False)
    return PresetTuner(
        command, "deepspeed", output_dir=folder / "out", study_name="s", tune_args=tune_args or {}, **options
    )
