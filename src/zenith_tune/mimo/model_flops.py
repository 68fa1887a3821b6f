"""The arithmetic of a multimodal model's step, as Megatron counts it: forward and twice that for backward.

s  tokens of a sequence, or patches of an item    h  hidden size
L  layers                                         f  size of the perceptron's middle
v  vocabulary                                     p  numbers in a patch
"""

from __future__ import annotations

from zenith_tune.mimo.model_config import EncoderConfig, LanguageConfig, MimoConfig, TransformerConfig


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
