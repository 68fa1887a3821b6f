"""The shape of the model that a Megatron-LM command builds; `emit.megatron_model` writes the same options.

Names and defaults as in Megatron-LM main of 2026-08-22: megatron/training/arguments.py, and the fields of
TransformerConfig.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

from zenith_tune.describe.megatron.args import MegatronArgs, shown
from zenith_tune.describe.model_catalog import catalog_model, known_models
from zenith_tune.describe.model_spec import LatentAttention, ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.units import whole

LAYER_PATTERN = "--moe-layer-freq"
MOST = 100_000
"""Longer lists are no model's; a slip of the keyboard must not fill the memory."""


def expert_layers(text: str | None, num_layers: int) -> list[bool]:
    """Return for each layer whether it has experts; nothing is evaluated as code."""
    period = 1 if text is None else whole(text.strip())
    if period:
        return [layer % period == 0 for layer in range(num_layers)]
    pattern = _listed(text or "")
    if pattern is None:
        problem = f"{LAYER_PATTERN} must be a whole number or a list such as ([0]*3+[1]*58)"
        raise UsageError(f"{problem}, but is {shown(text or '')}", hint="write it so")
    if len(pattern) != num_layers:
        problem = f"{LAYER_PATTERN} must say of each of the {num_layers} layers whether it has experts"
        raise UsageError(f"{problem}, but is of {len(pattern)}: correct it in the command")
    return [bool(item) for item in pattern]


def _listed(text: str) -> list[int] | None:
    if len(text) > MOST:
        return None
    try:
        value = _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return None
    return value if isinstance(value, list) else None


def _value(node: ast.expr) -> list[int] | int:
    """Return what lists and numbers under + and * come to."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.List):
        items = [_value(item) for item in node.elts]
        return [item for item in items if isinstance(item, int)]
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return left + right
        if isinstance(node.op, ast.Mult) and isinstance(left, list) and isinstance(right, int):
            if len(left) * right > MOST:
                raise ValueError(f"more than {MOST} layers")
            return left * right
    raise ValueError(ast.dump(node))


HINT = "add them to the command"
NEEDED = ("--num-layers", "--hidden-size", "--num-attention-heads")
OTHER_LAYERS = (
    "--hybrid-layer-pattern",
    "--hybrid-override-pattern",
    "--heterogeneous-layers-config-path",
    "--experimental-attention-variant",
    "--linear-attention-freq",
)
"""Options for layers that are neither attention nor feed-forward, or that differ from one another."""
GATED = ("--swiglu", "--quick-geglu")
DEFAULT_TOP_K = 2
DEFAULT_RANKS = {"kv_lora_rank": 32, "qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "v_head_dim": 128}
TOKENIZER_VOCAB = {"GPT2BPETokenizer": 50_257, "Llama2Tokenizer": 32_000}
"""By --tokenizer-type; other tokenizers are of any size."""
NEAR_VOCAB = 0.02
"""Padding makes a vocabulary larger by no more than this share; one that differs by more is another one."""


def model_from_args(args: MegatronArgs, hint: str = HINT) -> ModelSpec:
    """Return the model that the options build; its vocabulary is 0 where only the tokenizer knows it."""
    if option := args.first(*OTHER_LAYERS):
        problem = "a model must have layers of attention and feed-forward parts alone, all alike"
        hint = "tune it by --preset megatron, which knows no shapes"
        raise UsageError(f"{problem}, but the command has {option}", hint=hint)
    num_layers, hidden, heads = _needed(args, hint)
    gated = args.first(*GATED) is not None
    # Megatron's own width for SwiGLU, which has a matrix more, is two thirds of 4h in whole 64s.
    default_ffn = int((4 * hidden * 2 / 3) / 64) * 64 if args.has("--swiglu") else 4 * hidden
    ffn = args.count("--ffn-hidden-size") or default_ffn
    fields = _attention(args, hidden, heads) | _experts(args, num_layers, ffn)
    model = ModelSpec(
        name="",
        num_layers=num_layers,
        hidden=hidden,
        ffn_hidden=ffn,
        vocab=vocab_from_args(args),
        gated_mlp=gated,
        tied_embeddings=not args.has("--untie-embeddings-and-output-weights"),
        norm_bias=args.text("--normalization") != "RMSNorm",
        linear_bias=not args.has("--disable-bias-linear"),
        num_positions=_learned_positions(args),
        num_mtp_layers=args.count("--mtp-num-layers", least=0) or 0,
        **fields,
    )
    return replace(model, name=model_name(model))


def vocab_from_args(args: MegatronArgs) -> int:
    """Return the vocabulary as it is padded without tensor parallelism, or 0 where the options do not state it."""
    if padded := args.count("--padded-vocab-size"):
        return padded
    vocab = args.count("--vocab-size") or TOKENIZER_VOCAB.get(args.text("--tokenizer-type") or "", 0)
    multiple = args.count("--make-vocab-size-divisible-by")
    # Where it is not stated, the estimates pad by Megatron's own 128, for each size of tensor parallelism.
    return -(-vocab // multiple) * multiple if multiple else vocab


def model_name(model: ModelSpec) -> str:
    """Return the name of the catalog's model of this shape, or a short description of it."""
    same = [known for known in map(catalog_model, known_models()) if _shape(known) == _shape(model)]
    near = [known for known in same if 0 <= model.vocab - known.vocab <= NEAR_VOCAB * known.vocab]
    if near:
        return max(near, key=lambda known: known.vocab).name
    # Without its vocabulary a model's size is not known: embeddings may be a fifth of it.
    return f"{_kind(model)} {model.num_params / 1e9:.1f}B" if model.vocab else _kind(model)


def _shape(model: ModelSpec) -> ModelSpec:
    """Return a model without what may differ between two of one shape; a bias on all matrices is one on queries too."""
    has_bias = model.qkv_bias or model.linear_bias
    return replace(model, name="", vocab=0, num_mtp_layers=0, qkv_bias=has_bias)


def _kind(model: ModelSpec) -> str:
    if model.latent_attention:
        return "deepseek-like"
    experts = f"{model.num_experts}-expert " if model.num_experts else ""
    has_biases = model.norm_bias or model.linear_bias
    return experts + ("gpt-like" if has_biases or not model.gated_mlp else "llama-like")


def _needed(args: MegatronArgs, hint: str) -> tuple[int, int, int]:
    layers = args.count(NEEDED[0]) or args.count("--encoder-num-layers")
    hidden, heads = (args.count(option) for option in NEEDED[1:])
    if layers and hidden and heads:
        return layers, hidden, heads
    missing = [option for option, value in zip(NEEDED, (layers, hidden, heads), strict=True) if not value]
    raise UsageError(f"the command must give the model's shape, but has no {', '.join(missing)}", hint=hint)


def _attention(args: MegatronArgs, hidden: int, heads: int) -> dict[str, Any]:
    if args.has("--multi-latent-attention"):
        return _latent(args, heads)
    groups = (args.count("--num-query-groups") or 1) if args.has("--group-query-attention") else heads
    head_dim = args.count("--kv-channels")
    if not head_dim and hidden % heads:
        problem = "--hidden-size must be divisible by --num-attention-heads where --kv-channels is not given"
        raise UsageError(f"{problem}, but {hidden} % {heads} != 0: correct it in the command")
    return {
        "num_heads": heads,
        "num_kv_heads": groups,
        "head_dim": head_dim or hidden // heads,
        "qkv_bias": args.has("--add-qkv-bias"),
        "qk_norm": args.has("--qk-layernorm"),
        "attention_sinks": args.text("--softmax-type") == "learnable",
    }


def _latent(args: MegatronArgs, heads: int) -> dict[str, Any]:
    kv_rank, nope, rope, v_dim = (
        args.count(f"--{name.replace('_', '-')}") or default for name, default in DEFAULT_RANKS.items()
    )
    ranks = LatentAttention(
        q_rank=args.count("--q-lora-rank", least=0) or 0,
        kv_rank=kv_rank,
        qk_nope_dim=nope,
        qk_rope_dim=rope,
        v_dim=v_dim,
    )
    return {"num_heads": heads, "num_kv_heads": heads, "head_dim": v_dim, "latent_attention": ranks}


def _learned_positions(args: MegatronArgs) -> int:
    """Return the rows of the table of positions; Megatron learns them unless an option names another kind."""
    others = args.first("--no-position-embedding", "--use-rotary-position-embeddings")
    if others or args.text("--position-embedding-type") not in (None, "learned_absolute"):
        return 0
    return args.count("--max-position-embeddings") or args.count("--seq-length") or 0


def _experts(args: MegatronArgs, num_layers: int, ffn: int) -> dict[str, Any]:
    num_experts = args.count("--num-experts", least=0)
    if not num_experts:
        return {}
    return {
        "num_experts": num_experts,
        "top_k": min(args.count("--moe-router-topk") or DEFAULT_TOP_K, num_experts),
        "moe_ffn_hidden": args.count("--moe-ffn-hidden-size") or ffn,
        "shared_ffn_hidden": args.count("--moe-shared-expert-intermediate-size", least=0) or 0,
        "shared_gate": args.has("--moe-shared-expert-gate"),
        "router_bias": not args.has("--disable-bias-linear"),
        # Dense layers between others are counted as though they came first, where the planner has them.
        "num_dense_layers": expert_layers(args.text(LAYER_PATTERN), num_layers).count(False),
    }
