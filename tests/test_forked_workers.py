from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

TESTS = """
import os, time, pytest

@pytest.fixture(scope="session", autouse=True)
def tidied():
    path = f"{os.environ['LEFT']}/{os.getpid()}"
    open(path, "w").close()
    yield
    os.remove(path)

@pytest.mark.parametrize("number", range(12))
def test_it(number, tmp_path):
    print("number", number)
    if number == 3:
        os.kill(os.getpid(), 9)
    assert number != 5
"""


def run(folder: Path, *options: str) -> str:
    (folder / "test_own.py").write_text(TESTS)
    (folder / "left").mkdir()
    words = ["-m", "pytest", "-q", "-p", "tests.forked_workers", "--rootdir", str(folder), "--workers", "2", *options]
    env = {"PYTHONPATH": str(ROOT), "LEFT": str(folder / "left")}
    done = subprocess.run(
        [sys.executable, *words, str(folder)], cwd=folder, env=env, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_a_test_that_kills_its_worker_fails_alone_and_each_runs_once(tmp_path: Path) -> None:
    said = run(tmp_path)
    assert "2 failed, 10 passed" in said and "number 5" in said
    assert len(list((tmp_path / "left").iterdir())) == 1, "all but the killed worker end what their tests set up"


def test_no_more_is_run_after_the_first_failure_where_that_is_asked_for(tmp_path: Path) -> None:
    said = run(tmp_path, "--maxfail", "1", "-k", "5 or 6 or 7")
    assert "1 failed" in said and "stopping after 1 failures" in said
