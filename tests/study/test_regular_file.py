from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from zenith_tune.study.files import open_regular


@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.timeout(300)
def test_only_a_regular_file_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writable: bool) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("file")
    os.mkfifo("fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        before = sorted(Path("/proc/self/fd").iterdir())
        for name in ("missing", "folder", "link", "fifo", "socket", "/dev/zero", "/dev/null"):
            with pytest.raises(OSError):
                open_regular(Path(name), writable=writable)
        assert sorted(Path("/proc/self/fd").iterdir()) == before
    with open_regular(Path("file"), writable=writable) as file:
        assert file.read() == b"text"
        assert file.writable() is writable
        assert not os.get_inheritable(file.fileno())
