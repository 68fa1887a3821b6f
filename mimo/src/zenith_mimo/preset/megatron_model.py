"""The work of the modules that Megatron-LM's MIMO example builds, by its options.

s  tokens of a sequence          h  hidden size        f  width of a feed-forward part
d  width of a Mamba layer        E  experts            w  hidden size of the language model
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from zenith_mimo.planning.config import TransformerConfig
from zenith_mimo.planning.work import ModuleWork, PartWork, layer_work
from zenith_tune.describe.megatron.args import MegatronArgs
from zenith_tune.errors import UsageError

PATTERN = "--hybrid-layer-pattern"
KINDS = "M*-E"
"""Mamba, attention, feed-forward, experts."""
ENCODER = {"layers": 32, "hidden": 1280, "heads": 16}
"""RADIO-H, which the example trains with; no option says so."""
PATCH_DIM, IMAGE_SIDE, CLASS_TOKENS = 16, 224, 8
"""The example's own."""
ROWS_SHUFFLED = 4
"""Patches that become one token of the text with --pixel-shuffle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """One layer's parameters and its forward FLOPs for one token."""

    params: float = 0.0
    expert_params: float = 0.0
    flops: float = 0.0

    def __add__(self, other: _Layer) -> _Layer:
        return _Layer(
            params=self.params + other.params,
            expert_params=self.expert_params + other.expert_params,
            flops=self.flops + other.flops,
        )


def megatron_language(args: MegatronArgs) -> ModuleWork:
    """Return the language model's work by sample; layers of different kinds count as their average."""
    h, s = _needed(args, "--hidden-size"), _needed(args, "--seq-length")
    heads, vocab = _needed(args, "--num-attention-heads"), _needed(args, "--vocab-size")
    layers = _layers(args, h, s, heads)
    num, total = len(layers), sum(layers, _Layer())
    top_k = args.count("--moe-router-topk") or 2
    trains = _language_training(args)
    pattern = _pattern(args)
    num_segments = pattern.count("|") + 1 if "|" in pattern else 0
    return ModuleWork(
        num_layers=num,
        layer=PartWork(
            **trains,
            split_flops=s * total.flops / num,
            split_params=total.params / num,
            whole_params=2 * h,
            expert_params=total.expert_params / num,
            split_kept=s * 14 * h,
        ),
        first=PartWork(split_params=vocab * h, **trains),
        last=PartWork(split_flops=2.0 * s * h * vocab, split_params=vocab * h, split_kept=3 * s * vocab, **trains),
        hidden_numbers=s * h,
        is_sequence_parallel=True,
        widths=_language_widths(args, pattern, s, heads),
        depths=() if num_segments else (("the language model's layers", num),),
        groups=(("the query groups", _query_groups(args, heads)),),
        num_segments=num_segments,
        dispatched_numbers=s * h * top_k,
        num_experts=args.count("--num-experts", least=0) or 0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Images:
    """The encoder's tokens and patches of one image."""

    patches: int
    """Patches with the class tokens, which the projector does not see."""
    rows: int
    """Tokens of the text that they become."""
    patch_numbers: int


def _images(args: MegatronArgs, sizes: Mapping[str, int]) -> _Images:
    """Read the image flags as the example's mock data does."""
    s, dim = _needed(args, "--seq-length"), args.count("--patch-dim") or PATCH_DIM
    shuffled = ROWS_SHUFFLED if args.has("--pixel-shuffle") else 1
    length = args.count("--image-seq-length")
    if "patches" in sizes:
        patches = sizes["patches"]
    elif args.has("--dynamic-resolution"):
        patches = (length or s // 2) * shuffled
    else:
        height, width = args.count("--img-h") or IMAGE_SIDE, args.count("--img-w") or IMAGE_SIDE
        if height % dim or width % dim:
            problem = "the sides of an image must be multiples of --patch-dim"
            raise UsageError(f"{problem}, but got {height} * {width} and {dim}: correct it in the command")
        patches = (height // dim) * (width // dim)
    rows = patches // shuffled
    if length is not None and "patches" not in sizes and length != rows:
        problem = "--image-seq-length must be what the images become"
        raise UsageError(f"{problem}, but got {length} and {rows}: correct it in the command")
    if rows >= s:
        problem = "the text must have room for an image's tokens and some text"
        raise UsageError(f"{problem}, but --seq-length is {s} and an image becomes {rows}: correct it in the command")
    class_tokens = args.count("--class-token-len", least=0)
    patches += CLASS_TOKENS if class_tokens is None else class_tokens
    return _Images(patches=patches, rows=rows, patch_numbers=3 * dim * dim)


def megatron_encoder(sizes: Mapping[str, int], args: MegatronArgs) -> ModuleWork:
    """Return the encoder's work by image."""
    images = _images(args, sizes)
    sizes = {**ENCODER, **sizes}
    s, h, w = images.patches, sizes["hidden"], _needed(args, "--hidden-size")
    if h % sizes["heads"]:
        problem = "encoder_hidden must be a multiple of encoder_heads"
        raise UsageError(f"{problem}, but got {h} and {sizes['heads']}: correct --args")
    config = TransformerConfig(num_layers=sizes["layers"], hidden_size=h, num_heads=sizes["heads"], ffn_size=4 * h)
    width = h * (ROWS_SHUFFLED if args.has("--pixel-shuffle") else 1)
    is_deep = args.text("--vision-projection-type") == "mlp"
    projector = 4 * width * (width + w) if is_deep else width * w
    has_tower = not args.has("--freeze-vit")
    tower = {"is_trained": has_tower, "passes_gradient": has_tower}
    return ModuleWork(
        num_layers=sizes["layers"],
        layer=replace(layer_work(config, s, is_causal=False), **tower),
        first=PartWork(whole_flops=2.0 * s * images.patch_numbers * h, whole_params=images.patch_numbers * h, **tower),
        last=PartWork(
            split_flops=2.0 * images.rows * projector,
            split_params=projector,
            split_kept=images.rows * (4 * width if is_deep else w),
            is_trained=not args.has("--freeze-projection"),
            passes_gradient=has_tower,
        ),
        hidden_numbers=s * h,
        output_numbers=images.rows * w,
        widths=(("the encoder's heads", sizes["heads"]), ("the language model's width", w)),
    )


def _language_training(args: MegatronArgs) -> dict[str, bool]:
    """Return what is trained: gradients go through a frozen language model to a tower or a projector that is."""
    is_trained = not args.has("--freeze-lm")
    has_behind = not (args.has("--freeze-vit") and args.has("--freeze-projection"))
    if not (is_trained or has_behind):
        problem = "something must be trained, but the command freezes the language model, the encoder and its projector"
        raise UsageError(problem, hint="take one of the --freeze- options out")
    return {"is_trained": is_trained, "passes_gradient": is_trained or has_behind}


def _language_widths(args: MegatronArgs, pattern: str, s: int, heads: int) -> tuple[tuple[str, int], ...]:
    """Return what tp must divide: also the sequence, which is split wherever tp is above 1."""
    widths = [("the language model's heads", heads), ("the sequence length", s)]
    if "M" in pattern:
        mamba_heads, groups = _mamba_heads(args, _needed(args, "--hidden-size"))
        widths += [("the Mamba heads", mamba_heads), ("the Mamba groups", groups)]
        if mamba_heads % groups:
            problem = "the Mamba heads must be a multiple of the Mamba groups"
            raise UsageError(f"{problem}, but got {mamba_heads} and {groups}: correct it in the command")
    if "-" in pattern or not (pattern or args.count("--num-experts", least=0)):
        widths.append(("the feed-forward size", _ffn(args)))
    if shared := args.count("--moe-shared-expert-intermediate-size", least=0):
        widths.append(("the shared experts' size", shared))
    return tuple(widths)


def _pattern(args: MegatronArgs) -> str:
    """Return the pattern of the layers without that of the heads behind them; empty where the command has none."""
    return (args.text(PATTERN) or "").partition("/")[0]


def _layers(args: MegatronArgs, h: int, s: int, heads: int) -> list[_Layer]:
    dense = _matrices(args) * h * _ffn(args)
    makers = {
        "M": _mamba(args, h),
        "*": _attention(args, h, s, heads),
        "-": _Layer(params=dense, flops=2 * dense),
        "E": _experts(args, h),
    }
    if not args.has(PATTERN):
        second = makers["E"] if args.count("--num-experts", least=0) else makers["-"]
        return [makers["*"] + second] * _needed(args, "--num-layers")
    kinds = _pattern(args).replace("|", "")
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown or not kinds:
        problem = f"{PATTERN} must be made of {' '.join(KINDS)} for a plan"
        raise UsageError(f"{problem}, but has {' '.join(unknown) or 'nothing'}", hint="take --preset megatron")
    return [makers[kind] for kind in kinds]


def _attention(args: MegatronArgs, h: int, s: int, heads: int) -> _Layer:
    width = heads * (args.count("--kv-channels") or h // heads)
    params = h * width * 2 + 2 * h * width * _query_groups(args, heads) / heads
    return _Layer(params=params, flops=2 * params + 2 * s * width)


def _query_groups(args: MegatronArgs, heads: int) -> int:
    return (args.count("--num-query-groups") or 1) if args.has("--group-query-attention") else heads


def _mamba_heads(args: MegatronArgs, h: int) -> tuple[int, int]:
    """Return the heads of a Mamba layer, and their groups."""
    heads = args.count("--mamba-num-heads") or 2 * h // (args.count("--mamba-head-dim") or 64)
    return heads, args.count("--mamba-num-groups") or 8


def _mamba(args: MegatronArgs, h: int) -> _Layer:
    dim, state = args.count("--mamba-head-dim") or 64, args.count("--mamba-state-dim") or 128
    heads, groups = _mamba_heads(args, h)
    d = heads * dim
    params = h * (2 * d + 2 * groups * state + heads) + d * h
    return _Layer(params=params, flops=2 * params + 6 * d * state)


def _ffn(args: MegatronArgs) -> int:
    return args.count("--ffn-hidden-size") or 4 * _needed(args, "--hidden-size")


def _experts(args: MegatronArgs, h: int) -> _Layer:
    f = args.count("--moe-ffn-hidden-size") or args.count("--ffn-hidden-size") or 4 * h
    num, top_k = args.count("--num-experts", least=0) or 0, args.count("--moe-router-topk") or 2
    one = _matrices(args) * h * f
    shared = _matrices(args) * h * (args.count("--moe-shared-expert-intermediate-size", least=0) or 0)
    return _Layer(params=shared + h * num, expert_params=num * one, flops=2 * (shared + h * num + top_k * one))


def _matrices(args: MegatronArgs) -> int:
    return 3 if args.has("--swiglu") else 2


def _needed(args: MegatronArgs, option: str) -> int:
    number = args.count(option)
    if number is None:
        raise UsageError(f"the command must give the model's shape, but has no {option}", hint="add it to the command")
    return number
