"""Places that lead nowhere, and shards that speak of more than weights."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path

import pytest

from tests.checkpoint.reference import Model, Shape
from tests.checkpoint.shard_files import need_torch, write_shards
from tests.command_runs import Run, running
from tests.mentions import mentions
from tests.requirements import need_module

SHARD = "pytorch_model_tp_0_pp_0.{}"


@pytest.fixture
def checkpoint(capsys: pytest.CaptureFixture[str]) -> Run:
    need_module("engines", "zenith_checkpoint")
    return running("checkpoint", capsys)


@pytest.fixture
def circle(tmp_path: Path) -> Path:
    """Return a link that leads to itself by another."""
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    return tmp_path / "a"


def test_links_in_a_circle_are_refused_in_one_line(checkpoint: Run, tmp_path: Path, circle: Path) -> None:
    folder, out = str(write_shards(tmp_path / "old", Model(Shape()), 1, 1)), str(tmp_path / "one.safetensors")
    around = tmp_path / "around"
    around.mkdir()
    (around / SHARD.format("safetensors")).symlink_to(circle)
    runs = {
        ("merge", str(circle), "--output", out): "Too many levels of symbolic links",
        ("merge", str(around), "--output", out): SHARD.format("safetensors"),
        ("merge", folder, "--output", str(circle / "one.safetensors")): str(circle),
        ("reshard", folder, "--tp", "1", "--pp", "1", "--output", str(circle)): str(circle),
    }
    before = sorted(tmp_path.iterdir())
    for arguments, path in runs.items():
        done = checkpoint(*arguments)
        assert done.code == 2 and path in done.err and done.err.count("\n") == 1, done
    assert sorted(tmp_path.iterdir()) == before


def test_the_root_has_no_name_for_a_folder_beside_it(checkpoint: Run) -> None:
    done = checkpoint("reshard", os.sep, "--tp", "1", "--pp", "1")
    assert done.code == 2 and mentions(done.err, "--output DIR") and done.err.count("\n") == 1


class Runs:
    """Run a program when it is unpickled."""

    def __init__(self, program: str) -> None:
        self.program = program

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (self.program,)


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_bin_that_would_run_a_program_is_refused_in_one_line(checkpoint: Run, tmp_path: Path, protocol: int) -> None:
    need_torch()
    folder, mark = tmp_path / "old", tmp_path / "it ran"
    folder.mkdir()
    with zipfile.ZipFile(folder / SHARD.format("bin"), "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"w": Runs(f"touch '{mark}'")}, protocol))
        archive.writestr("archive/version", "3")
    done = checkpoint("merge", str(folder), "--output", str(tmp_path / "one.safetensors"))
    assert done.code == 2 and done.err.count("\n") == 1, done.err
    assert mentions(done.err, SHARD.format("bin")) and not mark.exists()
