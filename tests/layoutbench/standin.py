"""A landscape of twelve layouts that nobody measured, for tests."""

from __future__ import annotations

from typing import Any

STEPS = {(tp, mbs): 4.0 / tp + 1.0 / mbs for tp in (1, 2, 4) for mbs in (1, 2, 4, 8)}
BEST = {"tp": 4, "mbs": 4}
"""The fastest of those that run."""


def content(**changes: Any) -> dict[str, Any]:
    """Return a landscape as its file holds it: the largest micro-batch crashes."""
    layouts = [
        {"params": {"tp": tp, "mbs": mbs}, "runs": [_run(step_s, crashes=mbs == 8)]}
        for (tp, mbs), step_s in STEPS.items()
    ]
    return {
        "schema": "layoutbench/1",
        "name": "stand-in",
        "model": {"name": "toy", "layers": 2, "hidden": 64, "heads": 4},
        "job": {"framework": "toy", "seq_len": 128},
        "cluster": {"gpu": "H200", "gpu_memory_gib": 139.8, "num_gpus": 4},
        "axes": {"tp": [1, 2, 4], "mbs": [1, 2, 4, 8]},
        "source": {"id": "standin", "url": "none", "licence": "Apache-2.0", "rows": "none", "cost": "made up"},
        "used_for_fitting": [],
        "layouts": layouts,
    } | changes


def _run(step_s: float, *, crashes: bool) -> dict[str, Any]:
    return {"outcome": "oom", "cost_s": 5.0} if crashes else {"outcome": "ok", "steps_s": [step_s], "cost_s": 10.0}
