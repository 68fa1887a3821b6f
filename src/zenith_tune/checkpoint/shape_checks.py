"""What the joined weights must fulfil: all experts are there, and the shape is the one that was told."""

from __future__ import annotations

from collections.abc import Mapping

from zenith_tune.checkpoint.joined_tensor import JoinedTensor
from zenith_tune.checkpoint.model_shape import Attention, ModelShape, find_attention
from zenith_tune.checkpoint.split_rules import EMBEDDING, Split, expert_of
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


def refuse_shape(tables: list[JoinedTensor], shape: ModelShape, num_layers: int) -> int | None:
    """Refuse weights of another shape than was told; return the rows of the vocabulary, padding included."""
    if shape.num_layers is not None and shape.num_layers != num_layers:
        law = f"the model has {shape.num_layers} layers, but the shards hold {num_layers}"
        raise UsageError(f"{law}: a stage is missing, or check --model")
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
