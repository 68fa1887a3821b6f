"""Counts the parameters of every stage of every module of a small model, as the runtime builds them."""

from __future__ import annotations

import json

from tests.mimo.small_models import TWO_ENCODERS
from zenith_mimo.modules import build_module
from zenith_mimo.tensor_parallel import TensorParallel

PP = {"vision": 2, "audio": 2, "language": 3}


def main() -> None:
    counts = {}
    for name, most in PP.items():
        for tp in (1, 2):
            for pp in range(1, most + 1):
                for stage in range(pp):
                    module = build_module(TWO_ENCODERS, name, TensorParallel(size=tp), stage=stage, num_stages=pp)
                    counts[f"{name} {tp} {pp} {stage}"] = sum(each.numel() for each in module.parameters())
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
