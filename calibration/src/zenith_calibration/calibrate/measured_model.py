"""The model of a measured run, by the columns and notes of its row."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

from zenith_tune.describe.model_spec import LatentAttention, ModelSpec

UNGATED = ("gpt", "bloom", "mpt", "nemotron", "bert", "t5", "megatron", "opt")
"""Families with two feed-forward matrices; the others have three (SwiGLU)."""
GATED_ALL_THE_SAME = ("gpt oss", "gpt-oss", "gpt_oss")
CLOSE = 0.01
"""Relative difference of parameter counts within which they decide whether embeddings are tied."""
MAX_COUNT = 10**9
"""More than any model or cluster has of anything."""
TIED = ("gpt3", "gpt 1", "gpt 3", "gpt 5", "gpt 7", "bloom", "mpt", "bert", "t5")


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
