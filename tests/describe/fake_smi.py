"""A program on PATH that answers as nvidia-smi does."""

from __future__ import annotations

from pathlib import Path


def install(smi: Path, script: str) -> None:
    smi.write_text(f"#!/bin/sh\n{script}\n")
    smi.chmod(0o755)


def install_machine(smi: Path, gpus: str, links: str) -> None:
    (smi.parent / "gpus").write_text(gpus)
    (smi.parent / "links").write_text(links)
    install(smi, f"cd '{smi.parent}'; if [ \"$1\" = -L ]; then cat gpus; else cat links; fi")
