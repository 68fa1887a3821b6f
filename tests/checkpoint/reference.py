"""An independent sharder: a model is made of single heads, gates and experts, and each rank is built up from those."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Weights = dict[str, Array]

UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32}
SIZES = {"F8_E4M3": 1, "BF16": 2, "F16": 2, "F32": 4}

CORE = {
    "embedding": "embedding.",
    "layers": "decoder.layers.",
    "final": "decoder.final_layernorm.",
    "head": "output_layer.weight",
    "tied": "output_layer.weight",
    "attention": "self_attention.",
    "qkv": "linear_qkv",
    "proj": "linear_proj",
    "up": "linear_fc1",
    "down": "linear_fc2",
    "norm": "pre_mlp_layernorm",
    "experts": "mlp.experts.local_experts.",
}
OLD = {
    "embedding": "language_model.embedding.",
    "layers": "language_model.encoder.layers.",
    "final": "language_model.encoder.final_layernorm.",
    "head": "language_model.output_layer.weight",
    "tied": "word_embeddings_for_head.weight",
    "attention": "self_attention.",
    "qkv": "query_key_value",
    "proj": "dense",
    "up": "dense_h_to_4h",
    "down": "dense_4h_to_h",
    "norm": "post_attention_layernorm",
    "experts": "mlp.local_experts.",
}


@dataclass
class Shape:
    """What a random model looks like."""

    layers: int = 4
    hidden: int = 8
    heads: int = 4
    groups: int = 2
    head_dim: int = 2
    ffn: int = 8
    vocab: int = 11
    divisor: int = 2
    tied: bool = False
    gated: bool = True
    bias: bool = False
    experts: int = 0
    positions: bool = False
    dtype: str = "BF16"
    names: dict[str, str] = field(default_factory=lambda: CORE)

    def padded(self, tp: int) -> int:
        multiple = self.divisor * tp
        return (self.vocab + multiple - 1) // multiple * multiple


def random_shape(random: Random) -> Shape:
    """Return a shape that TP 1, 2 and 4 can split."""
    groups = random.choice([1, 2, 4])
    return Shape(
        layers=random.choice([2, 4, 6]),
        hidden=random.choice([4, 12]),
        heads=groups * random.choice([1, 2]) if groups == 4 else 4,
        groups=groups,
        head_dim=random.choice([2, 4]),
        ffn=random.choice([4, 12]),
        vocab=random.randint(5, 40),
        divisor=random.choice([1, 2, 8]),
        tied=random.random() < 0.5,
        gated=random.random() < 0.6,
        bias=random.random() < 0.5,
        experts=random.choice([0, 0, 3]),
        positions=random.random() < 0.3,
        dtype=random.choice(list(SIZES)),
        names=random.choice([CORE, OLD]),
    )


class Model:
    """The smallest parts of a model, from which shards of any layout and the whole are built."""

    def __init__(self, shape: Shape, seed: int = 0) -> None:
        self.shape = shape
        self._random = np.random.default_rng(seed)
        s = shape
        self.rows = [self._array(s.hidden) for _ in range(s.vocab)]
        self.head_rows = [self._array(s.hidden) for _ in range(s.vocab)]
        self.padding = list(self._array(4096, s.hidden))
        self.positions = self._array(5, s.hidden)
        self.final = self._array(s.hidden)
        self.layers = [self._layer() for _ in range(s.layers)]

    def _array(self, *dims: int) -> Array:
        kind = UNSIGNED[SIZES[self.shape.dtype]]
        # No bits of an exponent are all set: a NaN need not survive a conversion between types.
        return self._random.integers(0, np.iinfo(kind).max // 4, dims, kind)

    def _layer(self) -> dict[str, Any]:
        s = self.shape
        return {
            "q": [[self._linear(s.head_dim, s.hidden) for _ in range(s.heads // s.groups)] for _ in range(s.groups)],
            "k": [self._linear(s.head_dim, s.hidden) for _ in range(s.groups)],
            "v": [self._linear(s.head_dim, s.hidden) for _ in range(s.groups)],
            "proj": [self._array(s.hidden, s.head_dim) for _ in range(s.heads)],
            "proj_bias": self._array(s.hidden),
            "norm": self._array(s.hidden),
            "router": self._array(max(s.experts, 1), s.hidden),
            "mlps": [self._mlp() for _ in range(max(s.experts, 1))],
        }

    def _linear(self, rows: int, columns: int) -> tuple[Array, Array]:
        return self._array(rows, columns), self._array(rows)

    def _mlp(self) -> dict[str, Any]:
        s = self.shape
        return {
            "gate": [self._linear(1, s.hidden) for _ in range(s.ffn)],
            "up": [self._linear(1, s.hidden) for _ in range(s.ffn)],
            "down": [self._array(s.hidden, 1) for _ in range(s.ffn)],
            "down_bias": self._array(s.hidden),
        }

    def whole(self, vocab_rows: int | None = None) -> Weights:
        """Return what one file holds, by default without padding."""
        rows = self.shape.vocab if vocab_rows is None else vocab_rows
        weights = self._ends(0, 1, rows, first=True, last=True)
        for number, layer in enumerate(self.layers):
            weights |= self._layer_part(layer, number, 0, 1)
        return weights

    def shard(self, rank: int, tp: int, stage: int, pp: int, *, global_numbers: bool = False) -> Weights:
        """Return what one rank of a layout holds."""
        per_stage = self.shape.layers // pp
        weights = self._ends(rank, tp, self.shape.padded(tp), first=stage == 0, last=stage == pp - 1)
        for local in range(per_stage):
            number = stage * per_stage + local
            weights |= self._layer_part(self.layers[number], number if global_numbers else local, rank, tp)
        return weights

    def _ends(self, rank: int, tp: int, rows: int, *, first: bool, last: bool) -> Weights:
        s, n = self.shape, self.shape.names
        here = range(rank * rows // tp, (rank + 1) * rows // tp)
        table = np.stack([(self.rows + self.padding)[row] for row in here])
        weights: Weights = {}
        if first:
            weights[f"{n['embedding']}word_embeddings.weight"] = table
            if s.positions:
                weights[f"{n['embedding']}position_embeddings.weight"] = self.positions
        if last:
            weights[f"{n['final']}weight"] = self.final
            if not s.tied:
                weights[n["head"]] = np.stack([(self.head_rows + self.padding)[row] for row in here])
            elif not first:
                weights[n["tied"]] = table
        return weights

    def _layer_part(self, layer: dict[str, Any], number: int, rank: int, tp: int) -> Weights:
        s, n = self.shape, self.shape.names
        start = f"{n['layers']}{number}."
        attention = f"{start}{n['attention']}"
        blocks = [part for g in range(s.groups) for part in [*layer["q"][g], layer["k"][g], layer["v"][g]]]
        qkv, qkv_bias = (np.concatenate([block[i] for block in blocks]) for i in (0, 1))
        heads = layer["proj"][rank * s.heads // tp : (rank + 1) * s.heads // tp]
        weights = {
            f"{attention}{n['qkv']}.weight": np.split(qkv, tp)[rank],
            f"{attention}{n['proj']}.weight": np.concatenate(heads, axis=1),
            f"{start}{n['norm']}.weight": layer["norm"],
        }
        if s.bias:
            weights[f"{attention}{n['qkv']}.bias"] = np.split(qkv_bias, tp)[rank]
            weights[f"{attention}{n['proj']}.bias"] = layer["proj_bias"]
        if s.experts:
            weights[f"{start}mlp.router.weight"] = layer["router"]
            for number, mlp in enumerate(layer["mlps"]):
                weights |= self._mlp_part(mlp, f"{start}{n['experts']}{number}.", rank, tp)
        else:
            weights |= self._mlp_part(layer["mlps"][0], f"{start}mlp.", rank, tp)
        return weights

    def _mlp_part(self, mlp: dict[str, Any], start: str, rank: int, tp: int) -> Weights:
        s, n = self.shape, self.shape.names
        mine = range(rank * s.ffn // tp, (rank + 1) * s.ffn // tp)
        units = [mlp["gate"][unit] for unit in mine] if s.gated else []
        units += [mlp["up"][unit] for unit in mine]
        weights = {
            f"{start}{n['up']}.weight": np.concatenate([weight for weight, _ in units]),
            f"{start}{n['down']}.weight": np.concatenate([mlp["down"][unit] for unit in mine], axis=1),
        }
        if s.bias:
            weights[f"{start}{n['up']}.bias"] = np.concatenate([bias for _, bias in units])
            weights[f"{start}{n['down']}.bias"] = mlp["down_bias"]
        return weights
