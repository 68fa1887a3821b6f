"""Step times of runs that state only a rate of operations, by the formula that their source used."""

from __future__ import annotations

import math
from collections.abc import Mapping

from zenith_tune.describe.model_spec import ModelSpec


def step_from_rate(
    row: Mapping[str, str], model: ModelSpec, batch_tokens: float, num_gpus: int, peak_flops: float
) -> float | None:
    """Return the step time that a stated TFLOP/s/GPU or MFU stands for, or None where neither is stated."""
    stated, utilization = row.get("tflops_per_gpu") or "", row.get("mfu_pct") or ""
    try:
        rate = float(stated) * 1e12 if stated else float(utilization) / 100 * peak_flops if utilization else 0.0
    except ValueError:
        return None
    if not 0 < rate < math.inf:
        return None
    # The papers on Megatron-LM of 2021 count the forward pass that is run again as work done.
    hardware = "incl" in row.get("notes", "") or row["source_id"].startswith("megatron_sc21")
    passes = 4 if stated and hardware and row.get("recompute") == "full" else 3
    return passes * forward_flops_per_token(model, float(row["seq_len"])) * batch_tokens / (rate * num_gpus)


def forward_flops_per_token(model: ModelSpec, seq_len: float) -> float:
    """Return the operations of one token's forward pass, every score counted.

    For a dense GPT it is eq. 2 of Narayanan et al. 2021 (arXiv 2104.04473), 24*l*h^2*(1 + s/6h + V/12lh) a token.

    >>> gpt3 = ModelSpec(name="gpt3", num_layers=96, hidden=12288, ffn_hidden=49152, num_heads=96, num_kv_heads=96,
    ...                  head_dim=128, vocab=51200, gated_mlp=False, tied_embeddings=True)
    >>> ours, theirs = forward_flops_per_token(gpt3, 2048), 24*96*12288**2*(1 + 2048/6/12288 + 51200/12/96/12288)
    >>> abs(ours / theirs - 1) < 1e-3
    True
    """
    active = model.num_active_params - model.num_positions * model.hidden
    tables = model.embedding_params * (0 if model.tied_embeddings else 1)
    scores = 2 * seq_len * (model.query_size + model.value_size) * model.num_layers
    return 2 * (active - tables) + scores
