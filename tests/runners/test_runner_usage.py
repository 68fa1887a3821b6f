"""Mistakes in --slurm, --hostfile, --ray-address and --runner-args: one line, exit code 2, and hardly any time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.start_cost import assert_answers_quickly

TRAIN = ["--preset", "demo", "--", "python", "train.py"]
HOSTS = ["--hostfile", "hosts"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--slurm", "grace_s=-1"], "slurm: grace_s must be from 0 to 3600 seconds, but got -1: give"),
        (["--slurm", "grace_s=nan"], "slurm: grace_s must be from 0 to 3600 seconds, but got nan: give"),
        (["--slurm", "call_timeout_s=0"], "slurm: call_timeout_s must be from 0.1 to 3600 seconds, but got 0: give"),
        (["--slurm", "max_pause_s=-2"], "slurm: max_pause_s must be from 0.1 to 3600 seconds, but got -2: give"),
        (["--slurm", "max_pause_s=inf"], "slurm: max_pause_s must be from 0.1 to 3600 seconds, but got inf: give"),
        (["--slurm", "ahead=-3"], "slurm: ahead must be 0 or more jobs, but got -3: give ahead=0"),
        (["--slurm", "extra=--hold"], "slurm: extra must not hold '--hold', with which no trial would start"),
        ([*HOSTS, "--runner-args", "grace_s=nan"], "hostfile: grace_s must be from 0 to 3600 seconds, but got nan"),
        ([*HOSTS, "--runner-args", "ssh='"], "hostfile: ssh must be a program with its options, but got"),
        ([*HOSTS], "line 2 of hosts is a duplicate of 'n1'"),
        (["--runner", "ray", "--runner-args", "grace_s=-5"], "ray: grace_s must be from 0 to 3600 seconds, but got -5"),
        (["--ray-address", "foo:bar"], "must be auto, HOST:PORT or ray://HOST:PORT, but got 'foo:bar'"),
    ],
)
def test_a_mistake_is_told_in_one_line_quickly(arguments: list[str], problem: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("n1 slots=8\nn1 slots=8\n")
    argv = [sys.executable, "-m", "zenith_tune.cli.main", "optimize", *arguments, *TRAIN]

    def refused() -> None:
        done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert problem in done.stderr

    assert_answers_quickly(refused)
