"""The work of the modules of this package's own models; the arithmetic sums to that of `model_flops`.

s  tokens of a sequence, or patches of an item    h  hidden size
f  size of the perceptron's middle                w  hidden size of the language model
v  vocabulary                                     p  numbers in a patch

The arithmetic of a multimodal model's step, as Megatron counts it: forward and twice that for backward.

s  tokens of a sequence, or patches of an item    h  hidden size
L  layers                                         f  size of the perceptron's middle
v  vocabulary                                     p  numbers in a patch
"""

from __future__ import annotations

from zenith_tune.errors import UsageError
from zenith_tune.mimo.model_config import EncoderConfig, LanguageConfig, MimoConfig, TransformerConfig
from zenith_tune.mimo.module_layout import LANGUAGE, MimoLayout
from zenith_tune.mimo.module_work import ModuleWork, PartWork


def layer_work(config: TransformerConfig, s: int, *, is_causal: bool) -> PartWork:
    """Return the work of one block: 2 s (4 h^2 + 2 h f + 2 s h) forward, the last term halved under a causal mask."""
    h, f = config.hidden_size, config.ffn_size
    scores = s * h if is_causal else 2 * s * h
    return PartWork(
        split_flops=2.0 * s * (4 * h * h + 2 * h * f + scores),
        split_params=4 * h * h + 2 * h * f + f,
        whole_params=6 * h,
        split_kept=s * (5 * h + 2 * f),
        whole_kept=4 * s * h,
    )


def encoder_work(config: EncoderConfig, language_width: int) -> ModuleWork:
    """Return an encoder's work by item: patches embedded whole, the blocks, and the projector of two layers."""
    s, h, p, w = config.patches_per_item, config.transformer.hidden_size, config.patch_size, language_width
    return ModuleWork(
        num_layers=config.transformer.num_layers,
        layer=layer_work(config.transformer, s, is_causal=False),
        first=PartWork(whole_flops=2.0 * s * p * h, whole_params=h * p + h + s * h, whole_kept=s * p),
        last=PartWork(
            split_flops=2.0 * s * (h * w + w * w),
            split_params=h * w + w + w * w,
            whole_params=2 * h + w,
            split_kept=2 * s * w,
            whole_kept=2 * s * h,
        ),
        hidden_numbers=s * h,
        output_numbers=s * w,
        widths=(
            ("the encoder's heads", config.transformer.num_heads),
            ("the encoder's perceptron", config.transformer.ffn_size),
            ("the language model's width", w),
        ),
    )


def language_work(config: LanguageConfig) -> ModuleWork:
    """Return the language model's work by sample: the blocks and the logits."""
    s, h, v = config.seq_length, config.transformer.hidden_size, config.vocab_size
    return ModuleWork(
        num_layers=config.transformer.num_layers,
        layer=layer_work(config.transformer, s, is_causal=True),
        first=PartWork(split_params=v * h, whole_params=s * h),
        last=PartWork(
            split_flops=2.0 * s * h * v,
            split_params=v * h,
            whole_params=2 * h,
            split_kept=3 * s * v,
            whole_kept=2 * s * h,
        ),
        hidden_numbers=s * h,
        widths=(
            ("the language model's heads", config.transformer.num_heads),
            ("the language model's perceptron", config.transformer.ffn_size),
            ("the vocabulary", v),
        ),
    )


def check_layout(config: MimoConfig, layout: MimoLayout) -> None:
    """Refuse a layout that a module cannot be split by."""
    for name, module in sorted(layout.modules.items()):
        work = module_work(config, name)
        if (broken := work.why_not_tp(module.tp) or work.why_not_pp(module.pp)) is not None:
            raise UsageError(broken)


def module_work(config: MimoConfig, name: str) -> ModuleWork:
    """Return the work of one module of a model."""
    if name == LANGUAGE:
        return language_work(config.language)
    return encoder_work(config.encoders[name], config.language.transformer.hidden_size)


def transformer_flops(config: TransformerConfig, s: int, *, is_causal: bool) -> float:
    """Return 6 L s (4 h^2 + 2 h f + 2 s h), the last term halved under a causal mask."""
    h = config.hidden_size
    scores = s * h if is_causal else 2 * s * h
    return 6.0 * config.num_layers * s * (4 * h * h + 2 * h * config.ffn_size + scores)


def encoder_flops(config: EncoderConfig, language_width: int) -> float:
    """Return the FLOPs of one item: its patches' embedding, the blocks, and the projector of two layers."""
    s, h = config.patches_per_item, config.transformer.hidden_size
    ends = 6.0 * s * (config.patch_size * h + h * language_width + language_width * language_width)
    return transformer_flops(config.transformer, s, is_causal=False) + ends


def language_flops(config: LanguageConfig) -> float:
    """Return the FLOPs of one sequence: the blocks and the logits, 6 s h v."""
    s = config.seq_length
    logits = 6.0 * s * config.transformer.hidden_size * config.vocab_size
    return transformer_flops(config.transformer, s, is_causal=True) + logits


def step_flops(config: MimoConfig, num_samples: int, num_items: int) -> float:
    """Return the FLOPs of a step over that many samples with that many items for each encoder in all."""
    width = config.language.transformer.hidden_size
    items = sum(encoder_flops(encoder, width) for encoder in config.encoders.values())
    return num_samples * language_flops(config.language) + num_items * items
