"""Models and helpers that the tests of memory share."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.estimates.calibration import MemoryCoefficients
from zenith_tune.estimates.memory import MemoryEstimate, estimate_memory
from zenith_tune.estimates.workload import Workload
from zenith_tune.layouts.layout_batch import LayoutBatch


def gpt(name: str, num_layers: int, hidden: int, num_heads: int) -> ModelSpec:
    """Return a GPT of Korthikanti et al. 2022: sequence 2048, 51,200 words, learned positions."""
    return ModelSpec(
        name=name,
        num_layers=num_layers,
        hidden=hidden,
        ffn_hidden=4 * hidden,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=hidden // num_heads,
        vocab=51200,
        gated_mlp=False,
        tied_embeddings=True,
        norm_bias=True,
        linear_bias=True,
        num_positions=2048,
    )


def llama(**overrides: int | bool) -> ModelSpec:
    """Return a small model of the Llama family."""
    shape: dict[str, int | bool] = {
        "num_layers": 4,
        "hidden": 1024,
        "ffn_hidden": 4096,
        "num_heads": 16,
        "num_kv_heads": 4,
        "vocab": 32000,
    } | overrides
    shape.setdefault("head_dim", shape["hidden"] // shape["num_heads"])
    return ModelSpec(name="llama", **shape)  # type: ignore[arg-type]


def workload(model: ModelSpec, framework: str, seq_len: int = 2048) -> Workload:
    """Return the workload of a model."""
    return Workload.of(model, JobSpec(seq_len=seq_len, framework=load_framework(framework)))


def memory_of(
    model: ModelSpec,
    framework: str,
    layout: Mapping[str, npt.ArrayLike],
    *,
    seq_len: int = 2048,
    coefficients: MemoryCoefficients | None = None,
    stage: float | None = None,
) -> MemoryEstimate:
    """Estimate the memory of one layout, or of many; one micro-batch where the batch is not said."""
    layouts = LayoutBatch.of(**{"gbs": layout.get("mbs", 1), **layout})
    rank = None if stage is None else np.full(len(layouts), stage)
    at = workload(model, framework, seq_len)
    return estimate_memory(at, layouts, load_framework(framework), coefficients or MemoryCoefficients(), rank)
