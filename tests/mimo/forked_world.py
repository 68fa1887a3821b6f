"""Ranks as forked processes, and what each of them found."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from zenith_mimo.local_ranks import run_ranks


def run_world(world_size: int, work: Callable[[], dict[str, Any]], *, timeout_s: float = 500.0) -> list[dict[str, Any]]:
    """Run `work` on every rank of a gloo world, and return what each rank returned."""
    with tempfile.TemporaryDirectory() as folder:

        def write() -> None:
            (Path(folder) / f"{dist.get_rank()}.json").write_text(json.dumps(work()))

        codes = run_ranks(world_size, write, timeout=timedelta(seconds=timeout_s), grace_s=10)
        if any(codes):
            raise RuntimeError(f"exit codes of the ranks: {codes}")
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(world_size)]
