"""What a run of torchtitan logs of itself: the batch, its settings where it prints them, and the shape of its model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from zenith_tune.describe.model_spec import LatentAttention, ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.presets.torchtitan.command import Settings, flat
from zenith_tune.presets.torchtitan.dialect import AC_MODE

RANK = re.compile(r"\[[A-Za-z_]*([0-9]{1,6})\]:")
"""What torchrun puts in front of the lines of a rank."""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_SETTINGS = re.compile(r"Running with configs: (?=\{)")
_MODEL_ARGS = re.compile(r"Building (\S+) (\S+?) ?with (?=\{)")
_PARAMS = re.compile(r"Model (\S+) (\S+) size: ([0-9,]+) total parameters")
_SAMPLES = re.compile(r"global batch size ([0-9]+), gradient accumulation steps ([0-9]+), sequence length ([0-9]+)")
_TOKENS = re.compile(
    r"(?<![0-9])([0-9]{1,15}) tokens per train step, gradient accumulation steps ([0-9]+)"
    r", maximum context length ([0-9]+)"
)
_GPU = re.compile(r"CUDA capacity: (.{1,80}?) with [0-9.]+GiB memory")
PARAMS_TOLERANCE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class TitanRun:
    """A run as its log describes it; None, or nothing, where the log does not say."""

    settings: Settings
    model: Mapping[str, Any]
    """Its description: of a configuration in Python by parts, or the arguments of the older releases."""
    model_name: str = ""
    num_params: int | None = None
    step_tokens: int | None = None
    seq_len: int | None = None
    gpu: str | None = None

    @classmethod
    def read(cls, log: str) -> Self:
        """Read a log, whoever started its ranks."""
        text = first_rank(COLOUR.sub("", log))
        dump, args, params = _json(_SETTINGS, text), _json(_MODEL_ARGS, text), _PARAMS.search(text)
        spec = dump.get("model_spec") or {}
        gpu = _GPU.search(text)
        step_tokens, seq_len = _batch(text)
        return cls(
            settings=_settings(dump),
            model=spec.get("model") or args,
            model_name=f"{params[1]} {params[2]}" if params else "",
            num_params=int(params[3].replace(",", "")) if params else None,
            step_tokens=step_tokens,
            seq_len=seq_len,
            gpu=gpu[1] if gpu else None,
        )


def first_rank(log: str) -> str:
    """Return the lines of the lowest rank without what torchrun puts in front of them; all where it puts nothing.

    >>> first_rank("start\\n[rank1]:a\\n[rank0]:b\\n")
    'b'
    """
    lines = log.splitlines()
    marks = [RANK.match(line) for line in lines]
    if not any(marks):
        return log
    lowest = min(int(mark[1]) for mark in marks if mark)
    return "\n".join(
        line[mark.end() :] for line, mark in zip(lines, marks, strict=True) if mark and int(mark[1]) == lowest
    )


def _json(pattern: re.Pattern[str], text: str) -> dict[str, Any]:
    match = pattern.search(text)
    if match is None:
        return {}
    try:
        found, _ = json.JSONDecoder().raw_decode(text, match.end())
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _settings(dump: Mapping[str, Any]) -> Settings:
    if not dump:
        return {}
    found = flat({name: value for name, value in dump.items() if name != "model_spec"})
    if AC_MODE not in found:
        found[AC_MODE] = _recomputation(dump.get("activation_checkpoint"))
    return found


def _recomputation(policy: Any) -> str:
    """Return the mode of a policy, of which a dump has the fields alone."""
    if not isinstance(policy, Mapping):
        return "none"
    if "memory_budget" in policy:
        return "memory_budget"
    return "selective" if any("recompute" in name for name in policy) else "full"


def _batch(text: str) -> tuple[int | None, int | None]:
    """Return the tokens of a step and of a sample, as the trainer says them when it is ready."""
    if match := _SAMPLES.search(text):
        return int(match[1]) * int(match[3]), int(match[3])
    if match := _TOKENS.search(text):
        return int(match[1]), int(match[3])
    return None, None


def live_model(run: TitanRun) -> ModelSpec:
    """Return the shape of a run's model, or raise UsageError where its description is not one that is known."""
    hint = "give --args model=NAME"
    try:
        spec = _by_parts(run) if "layers" in run.model else _by_arguments(run)
    except (KeyError, TypeError, ValueError):
        raise UsageError(f"the log does not say the shape of {run.model_name or 'the model'}", hint=hint) from None
    if run.num_params and abs(spec.num_params / run.num_params - 1) > PARAMS_TOLERANCE:
        problem = f"{spec.name} has {run.num_params:,} parameters, but its description is read as {spec.num_params:,}"
        raise UsageError(problem, hint=hint)
    return spec


def _by_parts(run: TitanRun) -> ModelSpec:
    """Return the shape by a description of every layer."""
    model, layers = run.model, run.model["layers"]
    attention, first = layers[0]["attention"], layers[0]
    heads = attention["n_heads"]
    qkv = attention.get("qkv_linear") or {}
    dense = [layer["feed_forward"] for layer in layers if layer.get("feed_forward")]
    routed = [layer["moe"] for layer in layers if layer.get("moe")]
    width = _first(dense[0], "out_features") if dense else 0
    experts: dict[str, Any] = {}
    if routed:
        moe = routed[0]
        experts = {
            "num_experts": moe["num_experts"],
            "top_k": moe["router"]["top_k"],
            "moe_ffn_hidden": _first(moe["routed_experts"], "hidden_dim"),
            "shared_ffn_hidden": _first(moe.get("shared_experts") or {}, "out_features") or 0,
            "num_dense_layers": len(dense),
        }
    kv_heads = qkv.get("n_kv_heads") or attention.get("n_kv_heads") or heads
    return ModelSpec(
        name=run.model_name,
        num_layers=len(layers),
        hidden=model["dim"],
        ffn_hidden=width or 0,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=qkv.get("head_dim") or attention.get("head_dim") or model["dim"] // heads,
        vocab=model["vocab_size"],
        tied_embeddings=bool(model.get("enable_weight_tying")),
        qk_norm=bool(first["attention"].get("qk_norm")),
        latent_attention=_latent(attention, attention.get("q_lora_rank")),
        **experts,
    )


def _by_arguments(run: TitanRun) -> ModelSpec:
    """Return the shape by the arguments that models had until 0.2."""
    args, moe = run.model, run.model.get("moe_args") or {}
    heads, dim = args["n_heads"], args["dim"]
    has_experts = bool(moe) and (args.get("moe_enabled", True))
    moe_width = args.get("moe_inter_dim") or 0
    experts: dict[str, Any] = {}
    if has_experts:
        experts = {
            "num_experts": moe["num_experts"],
            "top_k": moe["top_k"],
            "moe_ffn_hidden": moe_width,
            "shared_ffn_hidden": moe.get("num_shared_experts", 0) * moe_width,
            "num_dense_layers": args.get("n_dense_layers", 0),
        }
    return ModelSpec(
        name=run.model_name,
        num_layers=args["n_layers"],
        hidden=dim,
        ffn_hidden=args.get("hidden_dim") or args.get("inter_dim") or _rounded_width(args),
        num_heads=heads,
        num_kv_heads=args.get("n_kv_heads") or heads,
        head_dim=args.get("head_dim") or dim // heads,
        vocab=args["vocab_size"],
        tied_embeddings=bool(args.get("enable_weight_tying")),
        qk_norm=bool(args.get("qk_norm")),
        latent_attention=_latent(args, args.get("q_lora_rank")),
        **experts,
    )


def _rounded_width(args: Mapping[str, Any]) -> int:
    """Return Llama's feed-forward width: two thirds of four times the hidden size, scaled and rounded up."""
    width = int(int(8 * args["dim"] / 3) * (args.get("ffn_dim_multiplier") or 1))
    multiple = int(args["multiple_of"])
    return -(-width // multiple) * multiple


def _latent(values: Mapping[str, Any], q_rank: Any) -> LatentAttention | None:
    if not values.get("kv_lora_rank"):
        return None
    return LatentAttention(
        q_rank=q_rank or 0,
        kv_rank=values["kv_lora_rank"],
        qk_nope_dim=values["qk_nope_head_dim"],
        qk_rope_dim=values["qk_rope_head_dim"],
        v_dim=values["v_head_dim"],
    )


def _first(part: Mapping[str, Any], name: str) -> Any:
    """Return the first value of this name in a part and what it is made of."""
    return next(_named(part, name), None)


def _named(part: Mapping[str, Any], name: str) -> Iterator[Any]:
    for key, value in part.items():
        if key == name:
            yield value
        elif isinstance(value, Mapping):
            yield from _named(value, name)
