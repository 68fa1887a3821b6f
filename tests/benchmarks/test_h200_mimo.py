"""The measuring of layers, on the CPU with tiny shapes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.requirements import need_module

PROGRAM = """
import sys
from dataclasses import replace
from pathlib import Path
import torch
from transformers import CLIPVisionConfig, Qwen2Config
from transformers.models.clip.modeling_clip import CLIPEncoderLayer
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer
from zenith_mimo.planning.config import TransformerConfig
import h200_mimo as script

torch.set_num_threads(1)
clip = CLIPVisionConfig(hidden_size=32, intermediate_size=64, num_attention_heads=4)
qwen = Qwen2Config(hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2)
block = TransformerConfig(num_layers=2, hidden_size=32, num_heads=4, ffn_size=64)
shape = script.HybridShape(hidden=32, heads=4, groups=2, head_dim=8, experts=4, top_k=2, expert_ffn=16, shared_ffn=32,
                           mamba_heads=4, mamba_dim=8, mamba_groups=2, state=4, chunk=4)
kinds = [
    replace(script.block_kind("ours", "encoder", block, (8,)), shards=(1, 2)),
    *script.hybrid_kinds(shape, (16,), (1, 2)),
    replace(script.transformers_kind("theirs", "encoder", clip, CLIPEncoderLayer, (8,)), shards=(1, 2)),
    script.transformers_kind("theirs", "language", qwen, Qwen2DecoderLayer, (16,)),
]
with torch.no_grad():
    # In chunks or in one, the same recurrence.
    mamba = script.HybridMamba(shape, 1)
    hidden = torch.randn(1, 16, 32)
    pieces = mamba(hidden)
    mamba.chunk = 16
    print(float((pieces - mamba(hidden)).abs().max()))
script.run(kinds, Path(sys.argv[1]), device="cpu", repeats=1, budget_s=400.0)
"""


@pytest.mark.slow
def test_every_shard_of_every_layer_is_measured_and_predicted(tmp_path: Path) -> None:
    need_module("engines", "torch")
    need_module("engines", "transformers")
    output = tmp_path / "mimo.json"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(output)],
        cwd=ROOT / "benchmarks",
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert float(done.stdout) < 1e-5
    found = json.loads(output.read_text())
    assert found["left_out"] == 0
    # Six kinds, two shards, three numbers of units.
    assert len(found["rows"]) == 36 and {row["shards"] for row in found["rows"]} == {1, 2}
    assert all(row["forward_s"] > 0 and row["backward_s"] > 0 for row in found["rows"])
    half = {
        row["shards"]: row["forward_flops"] for row in found["rows"] if row["kind"] == "block" and row["units"] == 1
    }
    assert half[1] == 2 * half[2] == 2 * 8 * (4 * 32**2 + 2 * 32 * 64 + 2 * 8 * 32)
    modules = found["predicted over measured"]
    assert {each["kind"] for each in modules} == {row["kind"] for row in found["rows"]}
    # A CPU is far from the stated rate of an H200.
    assert all(each["rates of the other pairs"]["median"] > 0 > each["stated rate"]["median"] - 1 for each in modules)
    assert len(found["rates"]) == 4 and all(rates["forward"]["flops_per_s"] > 0 for rates in found["rates"])
