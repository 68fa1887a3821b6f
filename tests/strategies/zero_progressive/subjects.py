"""Jobs small enough to compute by hand."""

from __future__ import annotations

from typing import Any

from zenith_tune import JobSpec, load_cluster, load_framework, load_model
from zenith_tune.describe.deepspeed_config import DsConfig
from zenith_tune.strategies.zero_progressive.feasibility import ZeroSubject


def subject(
    *, model: str = "llama3-8b", cluster: str = "h100x8", precision: str = "bf16", seq: int = 2048, **config: Any
) -> ZeroSubject:
    machines = load_cluster(cluster)
    return ZeroSubject(
        model=load_model(model),
        cluster=machines,
        job=JobSpec(seq_len=seq, framework=load_framework("deepspeed"), precision=precision),
        config=DsConfig(values=config),
        num_ranks=machines.num_gpus,
    )
