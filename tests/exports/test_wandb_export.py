"""A study in Weights & Biases, written offline and read back from the files that `wandb sync` would send."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command_runs import running
from tests.report.studies import TRIALS, recorded
from tests.requirements import need_module

pytestmark = pytest.mark.filterwarnings("ignore")  # wandb's own


HEADER, BLOCK, RECORD = 7, 32768, 7
"""Bytes of the head of a file, of a block in it, and of the head of a record: checksum, length, kind."""
FULL, LAST = 1, 4


def records(path: Path) -> list[Any]:
    """Return the records of a run's file: a log of blocks, in which a record may be in several pieces."""
    from wandb.proto import wandb_internal_pb2

    content, at, whole = path.read_bytes(), HEADER, b""
    found = []
    while at + RECORD <= len(content):
        if BLOCK - at % BLOCK < RECORD:
            at += BLOCK - at % BLOCK
        length, kind = struct.unpack_from("<HB", content, at + 4)
        whole += content[at + RECORD : at + RECORD + length]
        at += RECORD + length
        if kind in (FULL, LAST):
            record: Any = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
            record.ParseFromString(whole)
            found.append(record)
            whole = b""
    return found


@pytest.mark.slow
def test_every_trial_is_a_run_with_its_parameters_and_measurements(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    need_module("wandb", "wandb")
    monkeypatch.chdir(tmp_path)
    for name, value in {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false", "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    study = recorded(tmp_path / "out")
    done = running("export", capsys)(
        study.folder.path.name, "--output-dir", str(study.folder.output_dir), "--wandb", "layouts"
    )
    assert done.code == 0, done.err
    files = sorted((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == len(TRIALS)
    runs = [next(each.run for each in records(path) if each.HasField("run")) for path in files]
    assert {run.project for run in runs} == {"layouts"} and {run.run_group for run in runs} == {study.folder.path.name}
    config = {item.key: item.value_json for item in runs[-1].config.update}
    assert config["outcome"] and "trial" in config
    values = [
        item.value_json
        for path in files
        for each in records(path)
        if each.HasField("summary")
        for item in each.summary.update
        if item.key == "value" or list(item.nested_key) == ["value"]
    ]
    assert values, "no value was written"


def test_without_the_package_it_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    study = recorded(tmp_path / "out")
    done = running("export", capsys)(
        study.folder.path.name, "--output-dir", str(study.folder.output_dir), "--wandb", "p"
    )
    assert done.code == 2 and "zenith-tune[wandb]" in done.err and done.err.count("\n") == 1
