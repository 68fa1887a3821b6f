"""The shape of the model that a run of torchtitan trained, by the description in its log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zenith_tune.describe.model_spec import LatentAttention, ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.presets.torchtitan.log import TitanRun

PARAMS_TOLERANCE = 0.02


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
