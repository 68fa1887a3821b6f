"""A point of the Megatron search space, to vary from."""

from __future__ import annotations

from zenith_tune.study.parameters import Params

PLAIN: Params = {
    "tp": 1,
    "pp": 1,
    "cp": 1,
    "ep": 1,
    "etp": 1,
    "mbs": 1,
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
    "vit_gradient_checkpointing": "true",
}
