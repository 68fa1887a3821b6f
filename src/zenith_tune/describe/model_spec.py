"""The shape of a transformer language model, and how many parameters each of its parts has.

Legend: h hidden size, f feed-forward size, a attention heads, g key-value heads, d head dimension, E experts,
V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.errors import ModelConfigError

MAX_LAYERS = 10_000
"""Ten times the deepest model that was ever trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """The ranks of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

    q_rank: int
    """0 where the query is projected directly."""
    kv_rank: int
    qk_nope_dim: int
    qk_rope_dim: int
    v_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedLayers:
    """The repeated blocks of a module without a config, as one traced pass showed them."""

    num_params: int
    saved_bytes: float
    """Bytes per token that a block keeps of the forward pass."""
    saved_other_bytes: float
    """Bytes per token that are kept outside of the blocks."""
    num_tokens: int | None = None
    """Tokens of a sample as a block sees them; None where they are those of the sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The shape of a decoder-only transformer, dense or a mixture of experts."""

    name: str
    num_layers: int
    hidden: int
    ffn_hidden: int
    """Feed-forward width of a dense layer; unused in a model without dense layers."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab: int
    gated_mlp: bool = True
    """Three matrices (SwiGLU) instead of two."""
    tied_embeddings: bool = False
    norm_bias: bool = False
    """LayerNorm, which has a bias, instead of RMSNorm."""
    linear_bias: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    attention_sinks: bool = False
    embedding_norm: bool = False
    num_positions: int = 0
    """Learned positions; 0 where they are computed (rotary, ALiBi)."""
    num_experts: int = 0
    """0 for a model that is not a mixture of experts."""
    top_k: int = 0
    moe_ffn_hidden: int = 0
    shared_ffn_hidden: int = 0
    """Width of all shared experts together."""
    shared_gate: bool = False
    router_bias: bool = False
    num_dense_layers: int = 0
    """Leading layers of a mixture of experts that are dense."""
    latent_attention: LatentAttention | None = None
    num_mtp_layers: int = 0
    """Layers for multi-token prediction after the last one, which published counts leave out."""
    trained_share: float = 1.0
    """Share of the parameters that is trained; the others are frozen, as with an adapter (LoRA)."""
    traced: TracedLayers | None = None
    """Traced blocks of a model without a known shape, whose other widths are 0 except for the hidden size."""

    def __post_init__(self) -> None:
        """Refuse more layers than can be laid out."""
        if self.num_layers > MAX_LAYERS:
            problem = f"a model has at most {MAX_LAYERS:,} layers, but got {self.num_layers:,}"
            raise ModelConfigError(problem, hint="correct its number of layers")

    @property
    def num_moe_layers(self) -> int:
        """Layers whose feed-forward part is a mixture of experts."""
        return self.num_layers - self.num_dense_layers if self.num_experts else 0

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        mla = self.latent_attention
        return self.num_heads * (mla.qk_nope_dim + mla.qk_rope_dim if mla else self.head_dim)

    @property
    def value_size(self) -> int:
        """Width of the attention's output before its projection."""
        mla = self.latent_attention
        return self.num_heads * (mla.v_dim if mla else self.head_dim)

    @property
    def kv_size(self) -> int:
        """Width of keys and values together, as the attention kernel sees them."""
        mla = self.latent_attention
        if mla:
            return self.num_heads * (mla.qk_nope_dim + mla.qk_rope_dim + mla.v_dim)
        return 2 * self.num_kv_heads * self.head_dim

    @property
    def attention_params(self) -> int:
        """Parameters of one layer's attention, its norms of queries and keys included."""
        h, mla = self.hidden, self.latent_attention
        if mla:
            q = h * mla.q_rank + mla.q_rank + mla.q_rank * self.query_size if mla.q_rank else h * self.query_size
            kv = h * (mla.kv_rank + mla.qk_rope_dim) + mla.kv_rank
            kv += mla.kv_rank * self.num_heads * (mla.qk_nope_dim + mla.v_dim)
            return q + kv + self.value_size * h
        qkv = self.query_size + self.kv_size
        biases = (qkv if self.qkv_bias or self.linear_bias else 0) + (h if self.linear_bias else 0)
        extras = (2 * self.head_dim if self.qk_norm else 0) + (self.num_heads if self.attention_sinks else 0)
        return h * qkv + self.value_size * h + biases + extras

    @property
    def whole_attention_params(self) -> int:
        """The part of `attention_params` that tensor parallelism does not split: down-projections and their norms.

        Megatron builds linear_q_down_proj and linear_kv_down_proj with parallel_mode "duplicated".
        """
        mla = self.latent_attention
        if not mla:
            return 0
        query = (self.hidden + 1) * mla.q_rank
        return query + self.hidden * (mla.kv_rank + mla.qk_rope_dim) + mla.kv_rank

    def mlp_params(self, width: int) -> int:
        """Parameters of one feed-forward part of `width`."""
        up = 2 if self.gated_mlp else 1
        biases = up * width + self.hidden if self.linear_bias else 0
        return (up + 1) * self.hidden * width + biases

    @property
    def dense_mlp_params(self) -> int:
        """Parameters of a dense layer's feed-forward part; in a traced model those of the whole layer."""
        return self.traced.num_params if self.traced else self.mlp_params(self.ffn_hidden)

    @property
    def expert_params(self) -> int:
        return self.mlp_params(self.moe_ffn_hidden) if self.num_experts else 0

    @property
    def router_params(self) -> int:
        return self.num_experts * (self.hidden + (1 if self.router_bias else 0))

    @property
    def shared_expert_params(self) -> int:
        """Parameters of one layer's shared experts and their gate."""
        if not self.shared_ffn_hidden:
            return 0
        return self.mlp_params(self.shared_ffn_hidden) + (self.hidden if self.shared_gate else 0)

    @property
    def norm_params(self) -> int:
        """Parameters of one norm over the hidden size; 0 in a traced model, whose layers include them."""
        return 0 if self.traced else self.hidden * (2 if self.norm_bias else 1)

    @property
    def saved_layer_bytes(self) -> float:
        """Traced bytes per token that a layer keeps; 0 where its widths decide."""
        return self.traced.saved_bytes if self.traced else 0.0

    @property
    def saved_other_bytes(self) -> float:
        """Traced bytes per token that are kept outside of the layers."""
        return self.traced.saved_other_bytes if self.traced else 0.0

    @property
    def dense_layer_params(self) -> int:
        return self.attention_params + self.dense_mlp_params + 2 * self.norm_params

    @property
    def moe_layer_params(self) -> int:
        experts = self.num_experts * self.expert_params + self.router_params + self.shared_expert_params
        return self.attention_params + experts + 2 * self.norm_params

    @property
    def embedding_params(self) -> int:
        """Parameters of one vocabulary table."""
        return self.vocab * self.hidden

    @property
    def num_params(self) -> int:
        """All parameters, those for multi-token prediction left out."""
        dense = (self.num_layers - self.num_moe_layers) * self.dense_layer_params
        tables = self.embedding_params * (1 if self.tied_embeddings else 2) + self.num_positions * self.hidden
        norms = self.norm_params * (2 if self.embedding_norm else 1)
        return dense + self.num_moe_layers * self.moe_layer_params + tables + norms

    @property
    def num_active_params(self) -> int:
        """Parameters that one token passes through."""
        idle = (self.num_experts - self.top_k) * self.expert_params * self.num_moe_layers
        return self.num_params - idle
