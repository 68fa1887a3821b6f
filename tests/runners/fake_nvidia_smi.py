"""A small nvidia-smi on PATH, for machines without one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def put_on_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, num_gpus: int | None, script: str | None = None
) -> None:
    """Make `nvidia-smi` list so many H100 behind one switch; None: there is none, or only `script`."""
    programs = folder / "programs"
    programs.mkdir()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    if num_gpus is not None:
        script = f"cat <<'E'\n{_listed(num_gpus)}\nE" if num_gpus == 1 else _script(num_gpus)
    fake = programs / "nvidia-smi"
    fake.write_text(f"#!/bin/sh\n{script or 'exit 9'}\n")
    fake.chmod(0o755)


def _script(num_gpus: int) -> str:
    return f"case \"$1\" in\n-L) cat <<'E'\n{_listed(num_gpus)}\nE\n;;\n*) cat <<'E'\n{_matrix(num_gpus)}\nE\n;;\nesac"


def _listed(num_gpus: int) -> str:
    return "\n".join(f"GPU {number}: NVIDIA H100 80GB HBM3 (UUID: GPU-{number})" for number in range(num_gpus))


def _matrix(num_gpus: int) -> str:
    names = [f"GPU{number}" for number in range(num_gpus)]
    rows = [[name, *("X" if name == other else "NV18" for other in names)] for name in names]
    return "\n".join("\t".join(row) for row in [["", *names], *rows])
