"""What `zenithtune doctor --self` says of an installation."""

from __future__ import annotations

import platform
import stat
from pathlib import Path

import pytest

import zenith_tune
from tests.command_runs import running
from tests.mentions import mentions
from zenith_tune.doctor import installation


def test_versions_programs_and_extras_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-1)'; echo 'GPU 1: NVIDIA H200 (UUID: GPU-2)'\n")
    smi.chmod(smi.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    code, out, err = running("doctor", capsys)("--self")
    assert (code, err) == (0, "")
    head, machine, *rest = out.splitlines()
    assert zenith_tune.__version__ in head and platform.python_version() in head
    assert "2 x NVIDIA H200" in machine
    assert any(line.startswith("engines:") and str(smi) in line for line in rest)


def test_what_is_missing_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"zenith-tune": "1.0", "torch": "2.11"}
    monkeypatch.setattr(installation, "_version", lambda name: versions.get(name, ""))
    wanted = ["click>=8", "ray>=2.40; extra == 'ray'", 'torch>=2; extra == "mimo"', "ruff; extra == 'dev'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: wanted)
    monkeypatch.setenv("PATH", "/nowhere")
    lines = list(installation.installation_lines())
    at = next(place for place, line in enumerate(lines) if line.startswith("frameworks:"))
    assert lines[at].split() == ["frameworks:", "torch", "2.11"] and "megatron-core, " in lines[at + 1]
    engines, without = lines[at + 2 : at + 4]
    assert engines.split() == ["engines:", "none"] and mentions(without, "slurm", "sbatch", "kubernetes")
    assert lines[-2].split() == ["extras:", "mimo", "complete"]
    assert lines[-1].split()[:3] == ["not", "here:", "ray,"] and "pip install 'zenith-tune[NAME]'" in lines[-1]
