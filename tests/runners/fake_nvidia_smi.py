"""A small nvidia-smi on PATH, for machines without one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def put_on_path(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    num_gpus: int | None,
    script: str | None = None,
    link: str = "NV18",
) -> None:
    """Make `nvidia-smi` list so many H100, all joined alike; None: there is none, or only `script`."""
    programs = folder / "programs"
    programs.mkdir()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    if num_gpus is not None:
        script = _printed(_listed(num_gpus)) if num_gpus == 1 else _script(num_gpus, link)
    fake = programs / "nvidia-smi"
    fake.write_text(f"#!/bin/sh\n{script or 'exit 9'}\n")
    fake.chmod(0o755)


def _script(num_gpus: int, link: str) -> str:
    listed, matrix = _printed(_listed(num_gpus)), _printed(_matrix(num_gpus, link))
    return f'case "$1" in\n-L) {listed};;\n*) {matrix};;\nesac'


def _printed(text: str) -> str:
    return f"cat <<'E'\n{text}\nE\n"


def _listed(num_gpus: int) -> str:
    return "\n".join(f"GPU {number}: NVIDIA H100 80GB HBM3 (UUID: GPU-{number})" for number in range(num_gpus))


def _matrix(num_gpus: int, link: str) -> str:
    names = [f"GPU{number}" for number in range(num_gpus)]
    rows = [[name, *("X" if name == other else link for other in names)] for name in names]
    return "\n".join("\t".join(row) for row in [["", *names], *rows])
