"""Shards of any size in no time: headers that are real over files with holes, all of whose weights are zero."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

HIDDEN = 1024
MIB = 2**20


def large_shapes(tp: int, mib: int) -> dict[str, list[int]]:
    """Return shapes of one rank of `tp` for a model of `mib`, in BF16; its largest tensor is half of it."""
    ffn = mib * MIB // 2 // 2 // HIDDEN // 3
    rows = mib * MIB // 2 // 2 // HIDDEN
    return {
        "embedding.word_embeddings.weight": [rows // tp, HIDDEN],
        "decoder.layers.0.mlp.linear_fc1.weight": [2 * (ffn // tp), HIDDEN],
        "decoder.layers.0.mlp.linear_fc2.weight": [HIDDEN, ffn // tp],
        "decoder.final_layernorm.weight": [HIDDEN],
    }


def write_large(folder: Path, tp: int, mib: int) -> Path:
    folder.mkdir()
    header, end = {}, 0
    for name, shape in large_shapes(tp, mib).items():
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    for rank in range(tp):
        with (folder / f"pytorch_model_tp_{rank}_pp_0.safetensors").open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + end)
    return folder


def write_large_bins(folder: Path, tp: int, mib: int, torch: Any) -> Path:
    folder.mkdir()
    for rank in range(tp):
        shapes = large_shapes(tp, mib)
        weights = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
        torch.save(weights, folder / f"pytorch_model_tp_{rank}_pp_0.bin")
    return folder
