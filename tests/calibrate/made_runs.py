"""Runs whose step times are what the model of time says with given coefficients, so that a fit can be judged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tests.estimates.memory_cases import llama
from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.calibrate.time_fit import RunTable
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.estimates.calibration import TimeCoefficients
from zenith_tune.estimates.time import estimate_time

SMALL = llama(num_layers=16, hidden=2048, ffn_hidden=8192, num_heads=32, num_kv_heads=32, vocab=32000)
MIDDLE = llama(num_layers=32, hidden=4096, ffn_hidden=14336, num_heads=32, num_kv_heads=8, vocab=128256)
LARGE = llama(num_layers=80, hidden=8192, ffn_hidden=28672, num_heads=64, num_kv_heads=8, vocab=128256)
SPLITS = ((1, 1, 1), (2, 1, 1), (4, 1, 2), (8, 1, 1), (2, 2, 1), (4, 4, 1), (16, 1, 1), (8, 2, 4))
"""Tensor and pipeline parallelism, and the micro-batch."""


def a_run(model: ModelSpec, gpu: str, num_gpus: int, layout: dict[str, int | bool]) -> MeasuredRun:
    """Return a run that was not measured yet."""
    return MeasuredRun(
        source="made up",
        framework="megatron",
        stated_framework="Megatron-LM",
        model=model,
        model_name=f"{model.num_layers} layers",
        gpu=gpu,
        num_gpus=num_gpus,
        gpus_per_node=8,
        precision="bf16",
        seq_len=4096,
        layout=layout,
    )


def layouts(num_gpus: int) -> Iterator[dict[str, int | bool]]:
    """Yield layouts of so many GPUs."""
    for tp, pp, mbs in SPLITS:
        if num_gpus % (tp * pp) == 0:
            yield {"tp": tp, "pp": pp, "dp": num_gpus // (tp * pp), "mbs": mbs, "gbs": 256, "zero": 1}


def made_runs(
    coefficients: TimeCoefficients, *, gpus: tuple[str, ...] = ("h100",), noise: float = 0.0, seed: int = 0
) -> list[MeasuredRun]:
    """Return runs of three models on clusters of 8 to 64 GPUs of each kind, with noise in the logarithm."""
    places = [(model, gpu, size) for model in (SMALL, MIDDLE, LARGE) for gpu in gpus for size in (8, 16, 32, 64)]
    runs = [a_run(model, gpu, size, layout) for model, gpu, size in places for layout in layouts(size)]
    return timed(runs, coefficients, noise=noise, seed=seed)


def timed(
    runs: list[MeasuredRun], coefficients: TimeCoefficients, *, noise: float = 0.0, seed: int = 0
) -> list[MeasuredRun]:
    """Return the runs as a machine with these coefficients would have run them."""
    framework = load_framework("megatron")
    table = RunTable.of(runs, framework)
    step_s = estimate_time(table.workload, table.machine, table.layouts, framework, coefficients).step_s
    step_s = step_s * np.exp(np.random.default_rng(seed).normal(0, noise, len(runs)))
    return [replace(run, step_s=float(step)) for run, step in zip(runs, step_s, strict=True)]
