"""A small stand-in for Slurm's programs: each answers from a file of its own, and notes how it was called."""

from __future__ import annotations

from pathlib import Path

import pytest

_PROGRAM = """#!/bin/bash
here=$(dirname "$0")
printf '%s\\n' "$*" >> "$here/{name}.calls"
[ "{name}" != sbatch ] || cat > "$here/sbatch.script"
[ ! -f "$here/{name}.sleep" ] || exec sleep "$(cat "$here/{name}.sleep")"
[ ! -f "$here/{name}.err" ] || {{ cat "$here/{name}.err" >&2; exit 1; }}
[ ! -f "$here/{name}.out" ] || cat "$here/{name}.out"
"""
PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol", "srun")


class FakeSlurm:
    """The folder of the programs; what they answer can be changed at any time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in PROGRAMS:
            program = folder / name
            program.write_text(_PROGRAM.format(name=name))
            program.chmod(0o755)

    @classmethod
    def on_path(cls, folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
        """Make the programs and put them in front of the real ones."""
        fake = cls(folder)
        monkeypatch.setenv("PATH", str(folder), prepend=":")
        monkeypatch.delenv("SLURM_JOB_ID", raising=False)
        return fake

    def answer(self, name: str, text: str) -> None:
        """Let a program print this, and go well."""
        self._forget(name)
        (self.folder / f"{name}.out").write_text(text)

    def refuse(self, name: str, text: str) -> None:
        """Let a program fail with this message."""
        self._forget(name)
        (self.folder / f"{name}.err").write_text(text)

    def hang(self, name: str, seconds: float) -> None:
        """Let a program say nothing for a while."""
        self._forget(name)
        (self.folder / f"{name}.sleep").write_text(f"{seconds:g}")

    def _forget(self, name: str) -> None:
        for kind in ("out", "err", "sleep"):
            (self.folder / f"{name}.{kind}").unlink(missing_ok=True)

    def calls(self, name: str) -> list[str]:
        """Return the arguments of each call."""
        path = self.folder / f"{name}.calls"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def script(self) -> str:
        """The batch script that sbatch was last given."""
        return (self.folder / "sbatch.script").read_text()
