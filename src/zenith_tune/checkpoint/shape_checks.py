"""What the joined weights must fulfil: all experts are there, and the shape is the one that was told."""

from __future__ import annotations

from collections.abc import Mapping

from zenith_tune.checkpoint.joined_tensor import JoinedTensor
from zenith_tune.checkpoint.model_shape import Attention, ModelShape, find_attention
from zenith_tune.checkpoint.split_rules import EMBEDDING, Split, expert_of, is_expert
from zenith_tune.checkpoint.stored_tensor import describe
from zenith_tune.errors import UsageError

Tensors = Mapping[str, JoinedTensor]


def refuse_experts(tensors: Tensors) -> None:
    """Refuse a mixture of which some experts are missing, as in shards of expert parallelism."""
    found: dict[str, set[int]] = {}
    for name in tensors:
        expert = expert_of(name)
        if expert is not None:
            found.setdefault(expert[0], set()).add(expert[1])
    for mixture, experts in found.items():
        router = tensors.get(f"{mixture}router.weight")
        num_experts = router.shape[0] if router is not None and router.shape else max(experts) + 1
        if experts != set(range(num_experts)):
            shown = ", ".join(map(str, sorted(experts)[:8])) + (" ..." if len(experts) > 8 else "")
            law = (
                f"{mixture.rstrip('.')!r} must hold experts 0 to {num_experts - 1}, but holds {len(experts)} ({shown})"
            )
            raise UsageError(f"{law}: shards of expert parallelism cannot be joined; save with EP 1")


def refuse_layers(num_layers: int, shape: ModelShape) -> None:
    """Refuse another number of layers than was told."""
    if shape.num_layers is not None and shape.num_layers != num_layers:
        law = f"the model has {shape.num_layers} layers, but the shards hold {num_layers}"
        raise UsageError(f"{law}: a stage is missing, or check --model")


def refuse_tables(tables: list[JoinedTensor], shape: ModelShape) -> int | None:
    """Refuse vocabularies of another size than was told; return their rows, padding included."""
    rows = {table.shape[0] for table in tables}
    if len(rows) > 1:
        law = f"all vocabulary tables must have the same rows, but have {', '.join(map(str, sorted(rows)))}"
        raise UsageError(f"{law}: the shards are of different checkpoints")
    for table in tables:
        if shape.hidden is not None and table.name.endswith(EMBEDDING) and table.shape[1:] != (shape.hidden,):
            law = f"{table.name!r} must have {shape.hidden} columns, but has {list(table.shape)}"
            raise UsageError(f"{law}: check --model")
    padded = rows.pop() if rows else None
    if padded is not None and shape.vocab is not None and shape.vocab > padded:
        law = f"the vocabulary has {shape.vocab} entries, but the shards hold only {padded} rows"
        raise UsageError(f"{law}: check --vocab or --model")
    return padded


def refuse_widths(tensors: Tensors, shape: ModelShape) -> None:
    """Refuse feed-forward parts and routers of another size than was told."""
    for name, tensor in tensors.items():
        axis, told, what = 0, None, ""
        if name.endswith((".mlp.linear_fc2.weight", ".mlp.dense_4h_to_h.weight")):
            axis, told, what = 1, shape.ffn, "columns, the feed-forward width"
        elif tensor.split is Split.ROW and is_expert(name):
            axis, told, what = 1, shape.expert_ffn, "columns, the experts' width"
        elif name.endswith(".router.weight"):
            told, what = shape.num_experts, "rows, one for each expert"
        if told is not None and tensor.shape[axis] != told:
            law = f"{name!r} must have {told} {what}, but is {describe(tensor.dtype, tensor.shape)}"
            raise UsageError(f"{law}: check --model")


def find_heads(tensors: Tensors, shape: ModelShape) -> tuple[Attention, ...]:
    """Return the kinds of attention in the model; none where nothing tells the size of a head."""
    kinds: dict[Attention, None] = {}
    for name, tensor in tensors.items():
        if tensor.split is not Split.QKV or not name.endswith(".weight"):
            continue
        module = name.rpartition(".")[0].rpartition(".")[0]
        projection = tensors.get(f"{module}.linear_proj.weight") or tensors.get(f"{module}.dense.weight")
        if projection is None:
            raise UsageError(f"{name!r} must come with its output projection, but that is missing: save it again")
        norm = tensors.get(f"{module}.q_layernorm.weight")
        attention = find_attention(
            shape,
            name,
            qkv_rows=tensor.shape[0],
            query_size=projection.shape[1],
            norm_size=norm.shape[0] if norm is not None and norm.shape else None,
        )
        if attention is not None:
            kinds[attention] = None
    return tuple(kinds)
