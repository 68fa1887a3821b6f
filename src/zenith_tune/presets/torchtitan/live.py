"""The shape of the model that a run of torchtitan trained, by the description in its log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zenith_tune.describe.model_spec import LatentAttention, ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.presets.torchtitan.log import TitanRun

PARAMS_TOLERANCE = 0.02


def live_model(run: TitanRun) -> ModelSpec:
    """Return the shape of a run's model, or raise UsageError where its description is not one that is known."""
    hint = "give --model NAME"
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
    attention = layers[0]["attention"]
    dense = [layer["feed_forward"] for layer in layers if layer.get("feed_forward")]
    routed = [layer["moe"] for layer in layers if layer.get("moe")]
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
    arguments = {
        **attention,
        **{name: value for name, value in (attention.get("qkv_linear") or {}).items() if value},
        **{name: value for name, value in model.items() if name != "layers"},
        "n_heads": attention["n_heads"],
        "n_layers": len(layers),
    }
    width = _first(dense[0], "out_features") if dense else None
    return _spec(run.model_name, arguments, ffn_hidden=width or 0, **experts)


def _by_arguments(run: TitanRun) -> ModelSpec:
    """Return the shape by the arguments that models had until 0.2."""
    args, moe = run.model, run.model.get("moe_args") or {}
    experts: dict[str, Any] = {}
    if moe and args.get("moe_enabled", True):
        width = args.get("moe_inter_dim") or 0
        experts = {
            "num_experts": moe["num_experts"],
            "top_k": moe["top_k"],
            "moe_ffn_hidden": width,
            "shared_ffn_hidden": moe.get("num_shared_experts", 0) * width,
            "num_dense_layers": args.get("n_dense_layers", 0),
        }
    hidden = args.get("hidden_dim") or args.get("inter_dim") or _rounded_width(args)
    return _spec(run.model_name, args, ffn_hidden=hidden, **experts)


def _spec(name: str, args: Mapping[str, Any], **further: Any) -> ModelSpec:
    heads, dim = args["n_heads"], args["dim"]
    latent = None
    if args.get("kv_lora_rank"):
        latent = LatentAttention(
            q_rank=args.get("q_lora_rank") or 0,
            kv_rank=args["kv_lora_rank"],
            qk_nope_dim=args["qk_nope_head_dim"],
            qk_rope_dim=args["qk_rope_head_dim"],
            v_dim=args["v_head_dim"],
        )
    return ModelSpec(
        name=name,
        num_layers=args["n_layers"],
        hidden=dim,
        num_heads=heads,
        num_kv_heads=args.get("n_kv_heads") or heads,
        head_dim=args.get("head_dim") or dim // heads,
        vocab=args["vocab_size"],
        tied_embeddings=bool(args.get("enable_weight_tying")),
        qk_norm=bool(args.get("qk_norm")),
        latent_attention=latent,
        **further,
    )


def _rounded_width(args: Mapping[str, Any]) -> int:
    """Return Llama's feed-forward width: two thirds of four times the hidden size, scaled and rounded up."""
    width = int(int(8 * args["dim"] / 3) * (args.get("ffn_dim_multiplier") or 1))
    multiple = int(args["multiple_of"])
    return -(-width // multiple) * multiple


def _first(part: Mapping[str, Any], name: str) -> Any:
    """Return the first value of this name in a part and what it is made of."""
    if name in part:
        return part[name]
    inner = (_first(each, name) for each in part.values() if isinstance(each, Mapping))
    return next((found for found in inner if found is not None), None)
