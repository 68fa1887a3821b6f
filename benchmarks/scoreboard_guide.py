"""The size guide for Accelerate, row by row against the planner's choice (bf16, sequences of 2K, A100 80 GB)."""

from __future__ import annotations

from typing import Any

from zenith_tune.calibrate.calibration_file import default_calibration
from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.layouts.layout import Layout
from zenith_tune.planner.planner import Planner

SEQ_LEN = 2048
ROWS = (
    ("7B", 8, 1, 1, 8, 1, 32, 4096, 11008, 32, 32),
    ("13B", 8, 2, 1, 4, 1, 40, 5120, 13824, 40, 40),
    ("20B", 16, 4, 1, 4, 1, 44, 6144, 16384, 48, 48),
    ("40B", 32, 4, 2, 4, 4, 60, 7168, 19456, 56, 56),
    ("70B", 64, 8, 2, 4, 8, 80, 8192, 28672, 64, 8),
    ("175B", 128, 8, 4, 4, 16, 96, 12288, 32768, 96, 96),
)
"""Name, GPUs, the guide's TP, PP, DP and micro-batches; then a Llama-like shape of that size."""


def size_guide() -> list[dict[str, Any]]:
    """Return, for each row of the guide, both choices and what ours gains."""
    return [_compare(*row) for row in ROWS]


def _compare(
    name: str, gpus: int, tp: int, pp: int, dp: int, m: int, layers: int, hidden: int, ffn: int, heads: int, kv: int
) -> dict[str, Any]:
    model = ModelSpec(
        name=name,
        num_layers=layers,
        hidden=hidden,
        ffn_hidden=ffn,
        num_heads=heads,
        num_kv_heads=kv,
        head_dim=hidden // heads,
        vocab=32000,
    )
    framework = load_framework("megatron")
    cluster = load_cluster(f"a100-80x{gpus}")
    planner = Planner(model, cluster, JobSpec(seq_len=SEQ_LEN, framework=framework), default_calibration("megatron"))
    best = None
    for mbs in (1, 2, 4, 8):
        guide = _guide(planner, gpus, tp, pp, dp * m * mbs, mbs)
        ours = planner.plan(dp * m * mbs, top=1).best[0]
        row = _row(name, guide, ours)
        if best is None or (row["guide_fits"], -row["gain_pct"]) > (best["guide_fits"], -best["gain_pct"]):
            best = row
    assert best is not None
    return best


def _guide(planner: Planner, gpus: int, tp: int, pp: int, batch: int, mbs: int) -> Any:
    """Return the guide's layout in its best variant: it says nothing of recomputation or sharding."""
    variants = [
        Layout(
            num_gpus=gpus,
            tp=tp,
            pp=pp,
            micro_batch=mbs,
            global_batch=batch,
            zero=1,
            recompute=recompute,
            recompute_layers=1 if recompute == "full/uniform" else 0,
            sequence_parallel=tp > 1,
        )
        for recompute in ("none", "selective", "full/uniform")
    ]
    return min(planner.evaluate(variants), key=lambda planned: planned.step_s)


def _row(name: str, guide: Any, ours: Any) -> dict[str, Any]:
    return {
        "model": name,
        "gpus": guide.layout.num_gpus,
        "batch": guide.layout.global_batch,
        "guide": guide.name,
        "guide_s": guide.step_s,
        "guide_fits": guide.oom_probability < 0.5,
        "ours": ours.name,
        "ours_s": ours.step_s,
        "gain_pct": round(100 * (guide.step_s / ours.step_s - 1), 1),
    }
