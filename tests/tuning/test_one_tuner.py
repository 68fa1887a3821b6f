"""One tuner for a study in a file, whatever becomes of its lock."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.started_processes import wait_until
from tests.study_tools import tune
from tests.thoroughness import few_quick
from tests.warm_process import WarmCommand
from zenith_tune.errors import StudyError

HOLD = """
import signal, sys
from pathlib import Path
from tests.study_tools import tune
tune(Path(sys.argv[1]), sys.argv[2], baseline=False).optimize()
(Path(sys.argv[1]) / "ended").touch()
signal.pause()
"""


def waiting_command(tmp_path: Path) -> str:
    return f"sh -c 'until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo value: {{x}}'"


def resume(tmp_path: Path) -> float | None:
    return tune(tmp_path, waiting_command(tmp_path), resume=True, baseline=False).optimize()[0]


@contextmanager
def running_tuner(tmp_path: Path) -> Iterator[WarmCommand]:
    """Run a study in another process, which lives on when its study has ended, as that of a notebook does."""
    work = tmp_path / "work"
    work.mkdir()
    holder = WarmCommand(["-c", HOLD, str(tmp_path), waiting_command(tmp_path)], work, os.environ)
    try:
        wait_until((tmp_path / "out/s/trials/0000/process").exists)
        yield holder
    finally:
        holder.kill()
        holder.wait()
        (tmp_path / "go").touch()  # its trial ends by itself


def remove_locks(tmp_path: Path) -> None:
    for lock in (tmp_path / "out").glob(".*.lock"):
        lock.unlink()


def test_a_removed_lock_file_lets_no_second_tuner_in(tmp_path: Path) -> None:
    with running_tuner(tmp_path) as holder:
        remove_locks(tmp_path)
        with pytest.raises(StudyError, match=f"process {holder.pid}"):
            resume(tmp_path)
        (tmp_path / "go").touch()
        wait_until((tmp_path / "ended").exists)
        assert holder.poll() is None
        assert resume(tmp_path) == 3.0


def test_a_killed_tuner_holds_nothing(tmp_path: Path) -> None:
    with running_tuner(tmp_path) as holder:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        (tmp_path / "go").touch()
    assert resume(tmp_path) == 3.0


@pytest.mark.parametrize("code", few_quick([errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP], 1))
def test_a_file_system_without_locks_serves_all_the_same(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_tuner(tmp_path) as holder:

        def refuse(file: IO[str], operation: int) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(fcntl, "flock", refuse)
        with pytest.raises(StudyError, match=f"process {holder.pid}"):
            resume(tmp_path)
        (tmp_path / "go").touch()
        wait_until((tmp_path / "ended").exists)
    assert resume(tmp_path) == 3.0
