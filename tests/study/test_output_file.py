from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from zenith_tune.study.files import write_output


def test_a_file_behind_a_link_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_output(link, "new")
    assert link.is_symlink() and target.read_text() == "new"


def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_output(pipe, "page")
    reader.join(500)
    assert read == ["page"] and pipe.is_fifo()


def test_a_full_device_stays_a_device() -> None:
    with pytest.raises(OSError, match="No space left"):
        write_output(Path("/dev/full"), "page")
    assert Path("/dev/full").is_char_device()


def test_a_new_file_is_made(tmp_path: Path) -> None:
    write_output(tmp_path / "new.html", "page")
    assert [path.name for path in tmp_path.iterdir()] == ["new.html"]
