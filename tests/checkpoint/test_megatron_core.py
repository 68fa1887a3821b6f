"""Megatron Core itself: what its ranks save and we merge makes the same logits in one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoint.shard_files import need_torch
from tests.conftest import ROOT
from tests.requirements import need_module
from zenith_tune.checkpoint.merge import merge
from zenith_tune.checkpoint.model_shape import ModelShape
from zenith_tune.checkpoint.reshard import Target, reshard

pytestmark = pytest.mark.slow


def start(folder: Path, rank: int, tp: int, pp: int, *options: str) -> subprocess.Popen[str]:
    degrees = ["--rank", str(rank), "--tp", str(tp), "--pp", str(pp), "--folder", str(folder)]
    command = [sys.executable, "-m", "tests.checkpoint.megatron_core_rank", *degrees, *options]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run_all(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        output, _ = process.communicate(timeout=150)
        assert process.returncode == 0, output[-3000:]


@pytest.mark.parametrize(
    ("tp", "pp", "groups", "options"),
    [
        (2, 1, 1, ["--gated"]),
        (2, 2, 4, ["--tied"]),
    ],
)
def test_the_merged_model_computes_what_the_ranks_did(
    tmp_path: Path, tp: int, pp: int, groups: int, options: list[str]
) -> None:
    torch = need_torch()
    for module in ("megatron", "megatron.core"):
        need_module("engines", module)
    shape = ModelShape(heads=4, kv_heads=groups, vocab=32)
    (tmp_path / "shards").mkdir()
    given = [*options, "--groups", str(groups)]
    run_all([start(tmp_path, rank, tp, pp, *given) for rank in range(tp * pp)])
    # Through another layout on the way, so that cutting is held against Megatron too.
    reshard(tmp_path / "shards", tmp_path / "again", Target(tp=4, pp=2, vocab_divisor=8), shape)
    for source in ("shards", "again"):
        merge(tmp_path / source, tmp_path / "one.bin", shape, force=True)
        run_all([start(tmp_path, 0, 1, 1, *given, "--merged", str(tmp_path / "one.bin"))])
        logits, expected = (torch.load(tmp_path / f"{name}.pt") for name in ("merged", "sharded"))
        assert expected.std() > 0.1
        assert torch.allclose(logits, expected, rtol=1e-4, atol=1e-4)
