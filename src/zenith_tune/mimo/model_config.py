"""The shapes of a small multimodal model's modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zenith_tune.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    """The blocks that every module has."""

    num_layers: int
    hidden_size: int
    num_heads: int
    ffn_size: int

    def __post_init__(self) -> None:
        for name in ("num_layers", "hidden_size", "num_heads", "ffn_size"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, but got {getattr(self, name)}.")
        if self.hidden_size % self.num_heads:
            raise UsageError(
                f"hidden size must be a multiple of the heads, but got {self.hidden_size} and {self.num_heads}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """An encoder of items (images, sounds), each a fixed number of patches, each patch one token of the text."""

    transformer: TransformerConfig
    patch_size: int
    """Numbers in a patch."""
    patches_per_item: int
    token_id: int
    """The token that stands for a patch in the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageConfig:
    """A decoder over text in which the encoders' outputs stand at their tokens."""

    transformer: TransformerConfig
    vocab_size: int
    seq_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MimoConfig:
    """A multimodal model: encoders by name, and the language model that they feed."""

    encoders: Mapping[str, EncoderConfig]
    language: LanguageConfig
    seed: int = 0
    recompute: frozenset[str] = frozenset()
    """Modules whose blocks run forward again in the backward pass instead of keeping their activations."""
    frozen: frozenset[str] = frozenset()
    """What is not trained: modules (`language`) or parts of one (`vision.blocks`)."""

    def is_frozen(self, parameter: str) -> bool:
        """Return whether a parameter, named from its module on, is frozen."""
        return any(f"{parameter}.".startswith(f"{part}.") for part in self.frozen)

    def __post_init__(self) -> None:
        num_special = max((encoder.token_id for encoder in self.encoders.values()), default=-1) + 1
        if self.language.vocab_size <= num_special:
            raise UsageError(
                f"the vocabulary must have words besides the {num_special} tokens of items, but has "
                f"{self.language.vocab_size}: enlarge it."
            )

    def item_tokens(self, num_items: int) -> dict[str, range]:
        """Return where the items stand in a text that has so many for each encoder; raises UsageError without room."""
        found, begin, length = {}, 1, self.language.seq_length
        for name, encoder in sorted(self.encoders.items()):
            end = begin + num_items * encoder.patches_per_item
            if end >= length:
                raise UsageError(
                    f"{length} tokens have no room for {num_items} items of {encoder.patches_per_item} patches "
                    f"and some text: lengthen the sequence, or take fewer items."
                )
            found[name], begin = range(begin, end), end
        return found
