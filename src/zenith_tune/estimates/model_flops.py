"""The floating-point operations of a model, whatever the layout, which achieved rates refer to.

Legend: s sequence length, h hidden size, V vocabulary, q and v widths of all query and value heads together.

Follows Megatron-LM's num_floating_point_operations (Megatron Core 0.16): 6 operations per token and weight that takes
part in a matrix product, of which 2 forward and 4 backward; scores and values count half, for the causal mask;
recomputation, norms and the embedding lookup are not counted.
"""

from __future__ import annotations

from zenith_tune.describe.model_spec import ModelSpec


def matrix_params(model: ModelSpec) -> int:
    """Return the weights that multiply one token: attention, dense and chosen experts' feed-forward, logits."""
    dense = (model.num_layers - model.num_moe_layers) * model.dense_mlp_params
    experts = model.num_moe_layers * (model.top_k * model.expert_params + model.shared_expert_params)
    router = model.num_moe_layers * model.router_params
    layers = model.num_layers * model.attention_params + dense + experts + router
    return layers + model.embedding_params * (1 + model.num_mtp_layers)


def attention_flops(model: ModelSpec, seq_len: int) -> float:
    """Return forward and backward operations of one token's scores and values: 6 * s * (q + v)/2 per layer."""
    return 3.0 * seq_len * (model.query_size + model.value_size) * model.num_layers


def flops_per_token(model: ModelSpec, seq_len: int) -> float:
    """Return the operations of one token, forward and backward; frozen weights have no gradients."""
    return (4.0 + 2.0 * model.trained_share) * matrix_params(model) + attention_flops(model, seq_len)


def forward_flops_per_token(model: ModelSpec, seq_len: float) -> float:
    """Return the operations of one token's forward pass, without a causal mask.

    For a dense GPT it is eq. 2 of Narayanan et al. 2021 (arXiv 2104.04473), 24*l*h^2*(1 + s/6h + V/12lh) a token.
    """
    active = model.num_active_params - model.num_positions * model.hidden
    tables = model.embedding_params * (0 if model.tied_embeddings else 1)
    scores = 2 * seq_len * (model.query_size + model.value_size) * model.num_layers
    return 2 * (active - tables) + scores
