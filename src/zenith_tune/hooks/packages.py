"""Reports which optional packages the interpreter that trains has, so that no trial is spent on a lever without one."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from .process import RANKS, report

DEEP_EP = "deep_ep"
FUSED_GRADIENTS, FUSED_SOFTMAX = "fused_weight_gradient_mlp_cuda", "scaled_upper_triang_masked_softmax_cuda"
PACKAGES = (DEEP_EP, FUSED_GRADIENTS, FUSED_SOFTMAX)


def start(settings: dict[str, Any], folder: str) -> None:
    """Report once for all ranks; a launcher, which has no rank, may report too."""
    if all(os.environ.get(name, "0") == "0" for name in RANKS):
        report({"packages": {name: importlib.util.find_spec(name) is not None for name in PACKAGES}})
