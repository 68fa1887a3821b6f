"""One measured training run: what was run, where, and what came out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.describe.model_spec import LatentAttention, ModelSpec
from zenith_tune.layouts.layout_batch import (
    RECOMPUTE_BLOCK,
    RECOMPUTE_NONE,
    RECOMPUTE_SELECTIVE,
    RECOMPUTE_UNIFORM,
    FloatArray,
    LayoutBatch,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One measured run; what its source does not state is None."""

    source: str
    framework: str
    """A name in the framework catalog."""
    stated_framework: str = ""
    """The framework's name as a table prints it."""
    release: float | None = None
    """Release of the framework, as a year with its fraction."""
    model: ModelSpec | None
    """The model's shape; None where the source does not give it."""
    model_name: str
    gpu: str
    """A name in the cluster catalog."""
    num_gpus: int | None
    gpus_per_node: int | None
    cluster: ClusterSpec | None = None
    """The cluster; None for the catalog's."""
    precision: str
    dispatcher: str = "alltoall"
    """One of describe.job_spec.DISPATCHERS."""
    seq_len: int | None
    layout: dict[str, int | bool]
    """The stated columns of a LayoutBatch."""
    probed_stage: int | None = None
    """The pipeline rank that ran alone, without messages; None for a whole run."""
    step_s: float | None = None
    memory_bytes: float | None = None
    memory_kind: str = ""
    """allocated, reserved or device."""
    out_of_memory: bool = False
    flags: tuple[str, ...] = ()
    """Marks of the source, such as FLAG or PROXY, that make the row no fair comparison."""
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def landscape(self) -> tuple[str, str]:
        """The model's shape and the cluster: runs of one landscape are held out together."""
        shape = self.model
        name = f"{shape.num_layers}x{shape.hidden}x{shape.num_experts}" if shape else self.model_name
        return name, f"{self.gpu}x{self.num_gpus}"

    @property
    def author(self) -> str:
        """Who measured it, on a machine and with software of their own; some have several tables."""
        return next((name for name in SEVERAL_TABLES if name in self.source), self.source)


SEVERAL_TABLES = ("h200", "vtrain")
"""Part of the names of tables that one author measured on one machine."""

LEAST_STEP_S, MOST_STEP_S = 1e-6, 86_400.0
"""Plausible step times."""
MOST_BYTES = 2**40
"""Largest plausible memory of one GPU."""


def is_step(seconds: float) -> bool:
    """Tell whether a step can take so long."""
    return LEAST_STEP_S <= seconds <= MOST_STEP_S


def is_memory(num_bytes: float) -> bool:
    """Tell whether a GPU can have so much in use."""
    return 0 < num_bytes <= MOST_BYTES


UNGATED = ("gpt", "bloom", "mpt", "nemotron", "bert", "t5", "megatron", "opt")
"""Families with two feed-forward matrices; the others have three (SwiGLU)."""
GATED_ALL_THE_SAME = ("gpt oss", "gpt-oss", "gpt_oss")
CLOSE = 0.01
"""Relative difference of parameter counts within which they decide whether embeddings are tied."""
MAX_COUNT = 10**9
"""More than any model or cluster has of anything."""
TIED = ("gpt3", "gpt 1", "gpt 3", "gpt 5", "gpt 7", "bloom", "mpt", "bert", "t5")


DEFAULT_COLUMNS: dict[str, int | bool] = {
    **dict.fromkeys(("tp", "pp", "vp", "cp", "ep", "etp", "dp", "mbs", "gbs"), 1),
    **dict.fromkeys(("schedule", "zero", "recompute", "recompute_layers"), 0),
    "sequence_parallel": True,
    "flash_attention": True,
}
"""Values of a layout that its source does not state."""


def recompute_kind(granularity: str, method: str) -> int:
    """Return the column of Megatron's --recompute-granularity and --recompute-method."""
    if granularity.startswith("full"):
        return RECOMPUTE_BLOCK if "block" in method else RECOMPUTE_UNIFORM
    return RECOMPUTE_SELECTIVE if granularity.startswith("selective") else RECOMPUTE_NONE


def stack_layouts(layouts: Iterable[Mapping[str, int | bool]]) -> LayoutBatch:
    """Return the stated columns of layouts as one batch."""
    rows = [DEFAULT_COLUMNS | dict(layout) for layout in layouts]
    return LayoutBatch.of(**{name: [row[name] for row in rows] for name in DEFAULT_COLUMNS})


def probed_ranks(runs: Iterable[MeasuredRun]) -> FloatArray:
    """Return the pipeline rank that ran alone in each run; nan for a whole run."""
    return np.array([np.nan if run.probed_stage is None else run.probed_stage for run in runs])


def measured_model(row: Mapping[str, str], notes: Mapping[str, str]) -> ModelSpec | None:
    """Return the shape that a row states, or None where it does not state enough."""
    layers, hidden, heads = (number(row, key) for key in ("num_layers", "hidden", "num_heads"))
    gated = _is_gated(row, notes)
    if not layers and hidden and not gated:
        layers = _layers_from_params(row, hidden)
    if not (layers and hidden):
        return None
    heads = heads or max(hidden // 128, 1)  # the usual head size, where a source leaves it out
    ffn = number(row, "ffn_hidden") or (None if gated else 4 * hidden)
    vocab = number(row, "vocab") or _default_vocab(row)
    if not ffn or not vocab:
        return None
    experts = number(row, "n_experts") or 0
    latent = _latent(notes)
    shared = _note(notes, "shared_expert_ffn") or (ffn if _note(notes, "n_shared_experts") else 0)
    model = ModelSpec(
        name=row["model"],
        num_layers=layers,
        hidden=hidden,
        ffn_hidden=_note(notes, "dense_ffn") or ffn,
        num_heads=heads,
        num_kv_heads=number(row, "num_kv_heads") or heads,
        head_dim=_note(notes, "head_dim") or (latent.v_dim if latent else hidden // heads),
        vocab=vocab,
        gated_mlp=gated,
        tied_embeddings=_is_tied(row, notes),
        norm_bias=not gated,
        qk_norm="qk-norm" in notes,
        num_positions=_positions(row, gated),
        num_experts=experts,
        top_k=(number(row, "top_k") or 2) if experts else 0,
        moe_ffn_hidden=ffn if experts else 0,
        shared_ffn_hidden=shared,
        num_dense_layers=_note(notes, "first_k_dense") or 0,
        latent_attention=latent,
        num_mtp_layers=_note(notes, "mtp") or 0,
    )
    # The stated number of parameters shows whether embeddings are tied.
    stated = _stated_params(row)
    other = replace(model, tied_embeddings=not model.tied_embeddings)
    agrees = abs(other.num_params - stated) < CLOSE * stated < abs(model.num_params - stated)
    return other if agrees else model


def _positions(row: Mapping[str, str], gated: bool) -> int:
    # Megatron's test suite runs GPT-2 and BERT with learned positions, unless a test is of rotary ones.
    name = row["model"].lower()
    learned = "mcore_ci" in row["source_id"] and not gated and "mcore" in name and "rope" not in name
    return (number(row, "seq_len") or 0) if learned else 0


def _layers_from_params(row: Mapping[str, str], hidden: int) -> int | None:
    """Return the number of layers of 12 h^2 parameters that the stated number of parameters makes."""
    vocab = number(row, "vocab") or _default_vocab(row)
    params = _stated_params(row)
    return round((params - vocab * hidden) / (12 * hidden**2)) if params and vocab else None


def _stated_params(row: Mapping[str, str]) -> float:
    stated = figure(row, "params_b") * 1e9
    return stated if math.isfinite(stated) else 0.0


def figure(row: Mapping[str, str], key: str) -> float:
    """Return a number of a row, or nan where there is none."""
    try:
        return float(row.get(key) or "nan")
    except ValueError:
        return math.nan


def number(row: Mapping[str, str], key: str) -> int | None:
    """Return a count of a row, or None where there is none."""
    value = figure(row, key)
    return int(value) if 0 <= value <= MAX_COUNT else None


def _note(notes: Mapping[str, str], key: str) -> int | None:
    match = re.match(r"[0-9]{1,9}", notes.get(key, ""))
    return int(match[0]) if match else None


def _is_gated(row: Mapping[str, str], notes: Mapping[str, str]) -> bool:
    name = row["model"].lower()
    if "swiglu" in notes or any(part in name for part in GATED_ALL_THE_SAME):
        return True
    return not any(part in name for part in UNGATED)


def _is_tied(row: Mapping[str, str], notes: Mapping[str, str]) -> bool:
    if "untied" in notes:
        return False
    return "tied-embeddings" in notes or any(part in row["model"].lower() for part in TIED)


def _default_vocab(row: Mapping[str, str]) -> int | None:
    # BLOOM's rows leave the tokenizer out, which is known; Megatron's test suite uses GPT-2's.
    name = row["model"].lower()
    if "bloom" in name:
        return 250_880
    return 50_257 if "mcore_ci" in row["source_id"] else None


def _latent(notes: Mapping[str, str]) -> LatentAttention | None:
    if _note(notes, "kv_lora") is None:
        return None
    names = ("q_lora", "kv_lora", "qk_nope", "qk_rope", "v_head")
    q, kv, nope, rope, v = (_note(notes, name) or 0 for name in names)
    return LatentAttention(q_rank=q, kv_rank=kv, qk_nope_dim=nope, qk_rope_dim=rope, v_dim=v)
