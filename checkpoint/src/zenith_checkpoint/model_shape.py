"""What the user states of the model's shape, where the shards do not show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UsageError

VOCAB_DIVISOR = 128
"""Megatron-LM's default of --make-vocab-size-divisible-by."""


def count_of(args: Mapping[str, Any], name: str) -> int | None:
    """Return one of Megatron-LM's arguments, where a checkpoint has it as a number from 1."""
    value = args.get(name)
    return value if type(value) is int and value > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The known sizes of a model; None where a size was not given."""

    num_layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    ffn: int | None = None
    """Width of a dense feed-forward part."""
    expert_ffn: int | None = None
    num_experts: int | None = None
    vocab: int | None = None
    tied: bool | None = None
    no_query_gate: bool = False
    """The attention has no gate of its queries' size: then its rows tell the query groups for sure."""
    whole_experts: bool = False
    """Every tensor rank holds its experts whole: --expert-tensor-parallel-size 1."""
    any_model: bool = False
    """Layers may differ, and an end may be missing: the parts are not held against one another."""

    @classmethod
    def of_model(cls, model: ModelSpec) -> ModelShape:
        """Return the shape of a model that is known by its config.json or name."""
        is_latent = model.latent_attention is not None
        return cls(
            num_layers=model.num_layers,
            hidden=model.hidden,
            heads=model.num_heads,
            kv_heads=None if is_latent else model.num_kv_heads,
            head_dim=None if is_latent else model.head_dim,
            ffn=model.ffn_hidden,
            expert_ffn=model.moe_ffn_hidden or None,
            num_experts=model.num_experts or None,
            no_query_gate=True,
            vocab=model.vocab,
            tied=model.tied_embeddings,
        )

    def with_args(self, args: Mapping[str, Any], tp: int) -> ModelShape:
        """Return the shape with what Megatron-LM's own arguments tell, where the user stated nothing."""
        heads, expert_tp = count_of(args, "num_attention_heads"), count_of(args, "expert_tensor_parallel_size")
        is_latent = bool(args.get("multi_latent_attention"))
        groups = count_of(args, "num_query_groups") if args.get("group_query_attention", True) else heads
        return replace(
            self,
            heads=self.heads or heads,
            kv_heads=self.kv_heads or (None if is_latent else groups),
            head_dim=self.head_dim or (None if is_latent else count_of(args, "kv_channels")),
            vocab=self.vocab or count_of(args, "vocab_size"),
            whole_experts=self.whole_experts or (expert_tp == 1 and tp > 1),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """The attention heads of one layer."""

    heads: int
    kv_heads: int
    head_dim: int

    def why_not(self, tp: int) -> str | None:
        """Return why Megatron could not split these heads over so many ranks."""
        if self.heads % tp:
            return f"{self.heads} heads cannot be split over {tp} tensor ranks"
        if self.kv_heads % tp and tp % self.kv_heads:
            return f"{self.kv_heads} query groups are neither a multiple nor a divisor of {tp} tensor ranks"
        return None


def find_attention(
    shape: ModelShape, name: str, *, qkv_rows: int, query_size: int, norm_size: int | None
) -> Attention | None:
    """Return the heads of a layer from the sizes of its weights and what was given, or None where that is too little.

    The rows of the fused weight are all queries (with a gate of their size, in some models), keys and values; the
    columns of the output projection are all queries. So keys are known as a whole, and one of heads, groups and head
    size tells the others.
    """
    all_queries = (query_size,) if shape.no_query_gate else (query_size, 2 * query_size)
    halves = [divmod(qkv_rows - queries, 2) for queries in all_queries]
    kv_sizes = [size for size, rest in halves if not rest and 0 < size <= query_size and not query_size % size]
    if not kv_sizes:
        problem = f"{name!r} has {qkv_rows} rows, which are not {query_size} of queries with their keys and values"
        raise UsageError(f"{problem}: its order is not Megatron's")
    if not any((shape.heads, shape.kv_heads, shape.head_dim, norm_size)):
        return None
    found = [_heads(shape, query_size, kv_size, norm_size) for kv_size in kv_sizes]
    fitting = next((each for each in found if each is not None), None)
    if fitting is None:
        problem = f"{name!r} has {qkv_rows} rows for {query_size} of queries, which do not fit the heads given"
        raise UsageError(problem, hint="check --model, --heads, --kv-heads and --head-dim")
    return fitting


def _heads(shape: ModelShape, query_size: int, kv_size: int, norm_size: int | None) -> Attention | None:
    sizes = {
        shape.head_dim,
        norm_size,
        query_size / shape.heads if shape.heads else None,
        kv_size / shape.kv_heads if shape.kv_heads else None,
    } - {None}
    head_dim = int(sizes.pop() or 0)
    if head_dim == 0 or any(size != head_dim for size in sizes) or query_size % head_dim or kv_size % head_dim:
        return None
    heads, kv_heads = query_size // head_dim, kv_size // head_dim
    stated = (shape.heads or heads, shape.kv_heads or kv_heads)
    return Attention(heads=heads, kv_heads=kv_heads, head_dim=head_dim) if stated == (heads, kv_heads) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The rows of the vocabulary in the shards, and its entries where they are known."""

    padded: int
    tp: int | None
    """Tensor ranks that it was padded for, where that is known."""
    entries: int | None = None
    divisor: int = VOCAB_DIVISOR

    def __post_init__(self) -> None:
        too_many = self.tp is not None and self.padded - (self.entries or self.padded) >= self.divisor * self.tp
        if too_many:
            problem = f"the shards hold {self.padded} rows of a vocabulary of {self.entries}, more than padding to a "
            hint = "check --vocab and --model, or give --vocab-divisible-by"
            raise UsageError(f"{problem}multiple of {self.divisor} x TP {self.tp} explains", hint=hint)

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
            problem = f"{self.padded} rows of vocabulary are no multiple of {self.divisor} x TP {tp}"
            raise UsageError(problem, hint="give --vocab N or --model, so that they can be padded again")
        kept = f"vocabulary: all {self.padded:,} rows are kept"
        unsure = "; with --vocab or --model they would be padded as Megatron-LM does for this TP"
        return self.padded, kept + (unsure if tp != self.tp else "")
