"""Mistakes in --slurm, --hostfile, --ray-address and --runner-args: one line and exit code 2, before any trial."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_runs import running
from tests.start_cost import assert_answers_quickly

TRAIN = ["--preset", "demo", "--", "python", "train.py"]
HOSTS = ["--hostfile", "hosts"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--slurm", "grace_s=-1"], ["slurm: grace_s", "0 to 3600", "got -1"]),
        (["--slurm", "grace_s=nan"], ["slurm: grace_s", "0 to 3600", "got nan"]),
        (["--slurm", "call_timeout_s=0"], ["slurm: call_timeout_s", "0.1 to 3600", "got 0"]),
        (["--slurm", "max_pause_s=-2"], ["slurm: max_pause_s", "0.1 to 3600", "got -2"]),
        (["--slurm", "max_pause_s=inf"], ["slurm: max_pause_s", "0.1 to 3600", "got inf"]),
        (["--slurm", "ahead=-3"], ["slurm: ahead", "got -3", "ahead=0"]),
        (["--slurm", "extra=--hold"], ["slurm: extra", "'--hold'"]),
        ([*HOSTS, "--runner-args", "grace_s=nan"], ["hostfile: grace_s", "0 to 3600", "got nan"]),
        ([*HOSTS, "--runner-args", "ssh='"], ["hostfile: ssh"]),
        ([*HOSTS], ["line 2 of hosts", "'n1'"]),
        (["--runner", "ray", "--runner-args", "grace_s=-5"], ["ray: grace_s", "0 to 3600", "got -5"]),
        (["--kubernetes", "grace_s=-1"], ["kubernetes: grace_s", "0 to 3600", "got -1"]),
        (["--kubernetes", "manifest=none.yaml"], ["manifest cannot be read", "none.yaml"]),
        (["--kubernetes", "manifest=a,runtime=b"], ["names its runtime"]),
        (["--kubernetes", "kubeconfig=none.yaml"], ["no cluster is configured", "kubectl"]),
        (["--kubernetes", "a=1", "--slurm", "b=1"], ["--slurm and --kubernetes"]),
        (["--ray-address", "foo:bar"], ["auto, HOST:PORT or ray://HOST:PORT", "'foo:bar'"]),
    ],
)
def test_a_mistake_is_refused_in_one_line(
    arguments: list[str],
    named: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "hosts").write_text("n1 slots=8\nn1 slots=8\n")
    monkeypatch.chdir(tmp_path)
    done = running("optimize", capsys)(*arguments, *TRAIN)
    assert (done.code, len(done.err.splitlines())) == (2, 1), done.err
    assert [part for part in named if part not in done.err] == []


@pytest.mark.parametrize(("program", "option"), [("sbatch", "--slurm"), ("kubectl", "--kubernetes manifest=")])
def test_a_command_that_only_hands_a_job_on_is_refused(
    program: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = running("optimize", capsys)("--preset", "demo", "--", program, "apply", "-f", "x.yaml")
    assert done.code == 2 and program in done.err and option in done.err


def test_a_mistake_is_found_before_ray_is_loaded(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "zenith_tune.cli.main", "optimize", "--ray-address", "foo:bar", *TRAIN]

    def refused() -> None:
        assert subprocess.run(argv, capture_output=True, cwd=tmp_path).returncode == 2

    assert_answers_quickly(refused)
