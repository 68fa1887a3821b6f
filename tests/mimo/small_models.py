"""Small models and the layouts in which the tests train them."""

from __future__ import annotations

import dataclasses

from zenith_mimo.planning.config import (
    EncoderConfig,
    LanguageConfig,
    MimoConfig,
    MimoLayout,
    ModuleLayout,
    TransformerConfig,
)

GLOBAL_BATCH_SIZE = 16
# Images per sample: all different counts, a text-only sample among others, and text-only micro-batches of 1, 2 and 4.
NUM_ITEMS = (2, 1, 3, 0, 0, 0, 0, 0, 1, 2, 0, 3, 1, 1, 2, 1)

VISION = EncoderConfig(
    transformer=TransformerConfig(num_layers=2, hidden_size=16, num_heads=4, ffn_size=32),
    patch_size=6,
    patches_per_item=4,
    token_id=0,
)
AUDIO = EncoderConfig(
    transformer=TransformerConfig(num_layers=2, hidden_size=8, num_heads=2, ffn_size=16),
    patch_size=5,
    patches_per_item=2,
    token_id=1,
)
LANGUAGE = LanguageConfig(
    transformer=TransformerConfig(num_layers=3, hidden_size=32, num_heads=4, ffn_size=64), vocab_size=48, seq_length=24
)
VISION_LANGUAGE = MimoConfig(encoders={"vision": VISION}, language=LANGUAGE, seed=7)
TWO_ENCODERS = MimoConfig(encoders={"vision": VISION, "audio": AUDIO}, language=LANGUAGE, seed=7)
TEXT = MimoConfig(encoders={}, language=LANGUAGE, seed=7)
FROZEN = {
    "frozen encoder": {"vision"},
    "frozen tower": {"vision.embedding", "vision.blocks"},
    "frozen first stages": {"vision", "language.embedding", "language.blocks.0"},
    "frozen language": {"language"},
}
MODELS = {
    "vision-language": VISION_LANGUAGE,
    "two encoders": TWO_ENCODERS,
    "text": TEXT,
    **{name: dataclasses.replace(VISION_LANGUAGE, frozen=frozenset(parts)) for name, parts in FROZEN.items()},
}


def pair(vision: ModuleLayout, language: ModuleLayout) -> MimoLayout:
    return MimoLayout(modules={"vision": vision, "language": language})


# name: (model, layout, micro-batch size of the language model)
LAYOUTS: dict[str, tuple[str, MimoLayout, int]] = {
    "2 ranks": ("vision-language", pair(ModuleLayout(), ModuleLayout(offset=1)), 2),
    "4 ranks, llm pp3": ("vision-language", pair(ModuleLayout(), ModuleLayout(pp=3, offset=1)), 1),
    "tp2 to tp2 pp3": ("vision-language", pair(ModuleLayout(tp=2), ModuleLayout(tp=2, pp=3, offset=2)), 2),
    "tp2 pp2 to tp2 pp2": ("vision-language", pair(ModuleLayout(tp=2, pp=2), ModuleLayout(tp=2, pp=2, offset=4)), 2),
    "fan-in dp4 to dp1": ("vision-language", pair(ModuleLayout(dp=4), ModuleLayout(tp=2, pp=2, offset=4)), 4),
    "fan-in dp2 to dp1": ("vision-language", pair(ModuleLayout(dp=2), ModuleLayout(tp=2, pp=3, offset=2)), 2),
    "fan-out dp1 to dp4": ("vision-language", pair(ModuleLayout(tp=2, pp=2), ModuleLayout(dp=4, offset=4)), 1),
    "colocated tp2 dp4 to tp4 dp2": ("vision-language", pair(ModuleLayout(tp=2, dp=4), ModuleLayout(tp=4, dp=2)), 4),
    "colocated tp4 dp2 to tp2 dp4": ("vision-language", pair(ModuleLayout(tp=4, dp=2), ModuleLayout(tp=2, dp=4)), 2),
    "colocated tp2 dp2 both": ("vision-language", pair(ModuleLayout(tp=2, dp=2), ModuleLayout(tp=2, dp=2)), 2),
    "two encoders, one deep, one wide": (
        "two encoders",
        MimoLayout(
            modules={
                "vision": ModuleLayout(pp=2),
                "audio": ModuleLayout(dp=2, offset=2),
                "language": ModuleLayout(pp=2, dp=2, offset=4),
            }
        ),
        1,
    ),
    "two encoders, colocated": (
        "two encoders",
        MimoLayout(
            modules={"vision": ModuleLayout(tp=2, dp=2), "audio": ModuleLayout(dp=4), "language": ModuleLayout(dp=4)}
        ),
        1,
    ),
    "frozen encoder, 2 ranks": ("frozen encoder", pair(ModuleLayout(), ModuleLayout(offset=1)), 2),
    "frozen tower, pp2 to pp2": ("frozen tower", pair(ModuleLayout(pp=2), ModuleLayout(pp=2, offset=2)), 2),
    "frozen first stages, llm pp3": ("frozen first stages", pair(ModuleLayout(), ModuleLayout(pp=3, offset=1)), 1),
    "frozen language, colocated": ("frozen language", pair(ModuleLayout(dp=4), ModuleLayout(tp=2, dp=2)), 4),
    "text alone, pp2 dp2": ("text", MimoLayout(modules={"language": ModuleLayout(pp=2, dp=2)}), 2),
}
CHECKPOINT_LAYOUTS = [name for name, (model, _, _) in LAYOUTS.items() if model == "vision-language"]
