"""Runs that the tests of the doctor share."""

from __future__ import annotations

from tests.planner.planners import planner
from zenith_tune.doctor.diagnosed_run import Measured, RunOrigin
from zenith_tune.doctor.diagnosis_input import DiagnosisInput
from zenith_tune.layouts.layout import parse_layout


def run_of(
    layout: str,
    *,
    gbs: int = 64,
    model: str = "llama3-8b",
    cluster: str = "h100x8",
    seq_len: int = 8192,
    modules: tuple[str, ...] = (),
    measured: Measured | None = None,
    framework: str = "megatron",
    origin: RunOrigin | None = None,
) -> DiagnosisInput:
    """Return a run of a layout."""
    at = planner(model, cluster, seq_len=seq_len, framework=framework)
    chosen = parse_layout(layout, num_gpus=at.cluster.num_gpus, global_batch=gbs)
    return DiagnosisInput.of(at, chosen, measured=measured, recompute_modules=modules, origin=origin)
