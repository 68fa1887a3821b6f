"""The rows of a vocabulary: padded so that every tensor rank has as many, and what of them is kept."""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.checkpoint.model_shape import VOCAB_DIVISOR
from zenith_tune.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Hold how many rows the shards have, and how many entries there are where that was told."""

    padded: int
    tp: int
    entries: int | None = None
    divisor: int = VOCAB_DIVISOR

    def __post_init__(self) -> None:
        if self.entries is not None and self.padded - self.entries >= self.divisor * self.tp:
            law = f"the shards hold {self.padded} rows of a vocabulary of {self.entries}, more than padding to a "
            cure = "check --vocab and --model, or give --vocab-divisible-by"
            raise UsageError(f"{law}multiple of {self.divisor} x TP {self.tp} explains: {cure}")

    def merged(self) -> tuple[int, str]:
        """Return the rows of a merged file, and what to say of them."""
        if self.entries is None:
            kept = f"vocabulary: all {self.padded:,} rows are kept, with what is padding"
            return self.padded, f"{kept}; --vocab or --model would tell how many are not"
        return self.entries, f"vocabulary: {self.entries:,} entries, {self.padded - self.entries:,} of padding left out"

    def resharded(self, tp: int) -> tuple[int, str]:
        """Return the rows that Megatron-LM expects with `tp` ranks, and what to say of them."""
        multiple = self.divisor * tp
        if self.entries is not None:
            rows = -(-self.entries // multiple) * multiple
            return rows, f"vocabulary: {self.entries:,} entries, padded to {rows:,} rows (before: {self.padded:,})"
        if tp != self.tp and self.padded % multiple:
            law = f"{self.padded} rows of vocabulary are no multiple of {self.divisor} x TP {tp}"
            raise UsageError(f"{law}: give --vocab N or --model, so that they can be padded anew")
        kept = f"vocabulary: all {self.padded:,} rows are kept"
        unsure = "; with --vocab or --model they would be padded as Megatron-LM does for this TP"
        return self.padded, kept + (unsure if tp != self.tp else "")
