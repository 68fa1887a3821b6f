"""Tells which optional packages the interpreter has that trains, so that no trial is spent on a lever that lacks one.

A copy stands as `sitecustomize.py` in a folder at the front of PYTHONPATH of the user's own command, as it runs first.
It needs nothing but Python 3.8.
"""

from __future__ import annotations

import importlib.util
import os

try:  # the copy beside this one, in the user's process
    from zenithtune_import_hook import run_shadowed, tell  # type: ignore[import-not-found]
except ImportError:
    from zenith_tune.presets.import_hook import run_shadowed, tell

DEEP_EP = "deep_ep"
FUSED_GRADIENTS, FUSED_SOFTMAX = "fused_weight_gradient_mlp_cuda", "scaled_upper_triang_masked_softmax_cuda"
PACKAGES = (DEEP_EP, FUSED_GRADIENTS, FUSED_SOFTMAX)
RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")


def start() -> None:
    """Tell it once for all ranks; a launcher, which has no rank, may tell it too."""
    if all(os.environ.get(name, "0") == "0" for name in RANKS):
        tell({"packages": {name: importlib.util.find_spec(name) is not None for name in PACKAGES}})


if __name__ == "sitecustomize":
    start()
    run_shadowed(__file__)
