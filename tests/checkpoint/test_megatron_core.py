"""Megatron Core itself: what its ranks save and we merge makes the same logits in one process."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.checkpoint.shard_files import need_torch
from tests.checkpoint.test_hf_names import build, logits
from tests.conftest import ROOT
from tests.engines.conftest import ENGINE_ENV
from tests.requirements import need_module
from tests.warm_process import ENGINES, WarmProcess, start_server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def megatron() -> None:
    need_torch()
    for module in ("megatron", "megatron.core"):
        need_module("engines", module)
    start_server(ENGINES)


def run(program: str, *options: str, folder: Path) -> None:
    """Run a program beside this file in a folder, and fail with the end of what it wrote where it does."""
    words = ["-m", f"tests.checkpoint.{program}", *options, "--folder", str(folder)]
    errors = folder / "stderr"
    with errors.open("w") as stream:
        streams = {"out": stream.fileno(), "err": stream.fileno()}
        process = WarmProcess(ENGINES, words, folder=ROOT, env={**os.environ, **ENGINE_ENV}, **streams)
    try:
        assert process.wait(500) == 0, errors.read_text()[-3000:]
    finally:
        process.kill()


@pytest.mark.parametrize(
    "model",
    [
        "--tp 2 --pp 1 --groups 1 --gated",
        "--tp 2 --pp 2 --groups 4 --tied",
        "--tp 1 --pp 2 --ep 2 --experts 4 --groups 2 --gated",
        "--tp 2 --pp 1 --ep 2 --experts 4 --groups 2 --gated",
    ],
)
def test_the_merged_model_computes_what_the_ranks_did(tmp_path: Path, model: str) -> None:
    torch = need_torch()
    run("megatron_core_program", *model.split(), folder=tmp_path)
    expected, *found = (torch.load(path) for path in [tmp_path / "sharded.pt", *sorted(tmp_path.glob("merged-*.pt"))])
    assert expected.std() > 0.1 and len(found) == (5 if "--ep" in model else 7)
    for again in found:
        assert torch.allclose(again, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model_type", ["gpt2", "llama", "qwen3", "mixtral", "qwen3_moe"])
def test_megatron_core_computes_what_transformers_does(tmp_path: Path, model_type: str) -> None:
    torch = need_torch()
    expected = logits(build(tmp_path / "hf", model_type))
    run("megatron_hf_program", folder=tmp_path)
    found = torch.load(tmp_path / "megatron.pt")[..., :37]
    assert expected.std() > 0.1
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "num_converted"),
    [
        ("--source 2,1,1 --target 1,2,1", 10),
        ("--source 1,2,1 --target 2,1,1 --world 4 --bucket 2000 --tied", 4),
        ("--source 1,2,1 --target 1,1,2 --experts 4 --bf16", 10),
        ("--source 1,1,2 --target 1,2,1 --experts 4", 10),
    ],
)
def test_megatron_takes_the_same_steps_with_the_optimizer_in_another_layout(
    tmp_path: Path, options: str, num_converted: int
) -> None:
    run("megatron_optimizer_program", *options.split(), folder=tmp_path)
    losses = {
        path.stem.removeprefix("losses-"): json.loads(path.read_text()) for path in tmp_path.glob("losses-*.json")
    }
    fresh, expected = losses.pop("fresh"), {kind: losses.pop(f"{kind}-expected") for kind in ("plain", "sharded")}
    assert len(losses) == num_converted and all(len(found) == 3 for found in losses.values())
    near = 3e-5 if "--bf16" in options else 1e-5  # the order of sums is another, and bf16 rounds what it makes
    for name, found in losses.items():
        assert found == pytest.approx(expected[name.partition("-")[0]], rel=near), name
    assert abs(fresh[1] / expected["plain"][1] - 1) > 5e-5  # what a fresh optimizer would do
