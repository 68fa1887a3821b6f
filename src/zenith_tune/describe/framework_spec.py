"""What a training framework does with memory and time, as its code says; nothing here is fitted."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, replace
from typing import Any

from zenith_tune.describe.catalog import read_catalog
from zenith_tune.errors import UnknownNameError


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """Hold what one layer keeps, or needs for a while, per token: bytes per unit of each width."""

    attention_hidden: float = 4.0
    """Per hidden unit, around attention: the input of the norm and of the projections. Sequence parallelism cuts it."""
    whole: float = 0.0
    """Per hidden unit, of what sequence parallelism does not cut: inputs kept as they were gathered."""
    query: float = 2.0
    key_value: float = 2.0
    """Per unit of keys and values together."""
    value: float = 2.0
    """Per unit of the attention's output, which its projection reads."""
    heads: float = 4.0
    """Per head: the logarithms that flash attention keeps; none without it."""
    scores: float = 2.0
    """Per head and key position; none with flash attention."""
    mlp_hidden: float = 4.0
    """Per hidden unit, around the feed-forward part. Sequence parallelism cuts it."""
    ffn_gated: float = 6.0
    """Per unit of the feed-forward width where it has three matrices."""
    ffn_plain: float = 4.0
    expert_hidden: float = 2.0
    """Per hidden unit and chosen expert: the dispatched tokens."""
    router: float = 0.0
    """Per expert: logits, probabilities and maps of the router."""
    qk_norm: float = 0.0
    """Per unit of queries and keys, where they are normed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadBytes:
    """Hold what the output layer and the loss need per token, in bytes per unit of each width."""

    hidden: float = 4.0
    """The final norm's input and output."""
    forward_hidden: float = 0.0
    """What the loss going forward holds per hidden unit beside that."""
    forward_vocab: float = 6.0
    """Logits and their copies while the loss is computed."""
    backward_vocab: float = 6.0
    """The same when the gradient of the logits is computed."""
    weight_gradient: float = 0.0
    """Per parameter of the output layer: its gradient before it is added to the accumulated one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkSpec:
    """Hold the facts of one framework that the estimates need."""

    name: str
    weight_bytes: float = 2.0
    """Bytes per parameter of the weights that forward and backward read."""
    gradient_bytes: float = 4.0
    """Bytes per parameter of the gradients that are accumulated over the micro-batches."""
    reduced_gradient_bytes: float = 2.0
    """Bytes per parameter that the data-parallel ranks exchange of the gradients."""
    optimizer_bytes: float = 12.0
    """Bytes per parameter of what the optimizer keeps: a master copy and two moments in fp32."""
    step_bytes: float = 0.0
    """Bytes per updated parameter that the optimizer's step needs for its while."""
    bucket_bytes: float = 0.0
    """Bytes per parameter of buckets beside the gradients, in which unsharded ones are reduced."""
    sync_bytes: float = 0.0
    """Bytes per parameter that reducing sharded gradients needs for its while, whatever the sharding."""
    cast_bytes: float = 0.0
    """Bytes per parameter of a matrix of its half-precision copy that autocast keeps for the backward pass."""
    frees_gradients: bool = False
    """Whether gradients are freed after each step, so that the next one begins with their room empty."""
    vocab_multiple: int = 1
    """What each rank's share of the vocabulary is padded to a multiple of."""
    pipeline_split: str = "even"
    """even: the same number of layers everywhere; cost: dealt by cost, as nanotron does."""
    expands_key_values: bool = False
    """Whether unfused attention repeats keys and values for every query head, and keeps what they are cut of."""
    gather_bytes: float = 0.0
    """Bytes per hidden unit and token of the whole sequence that sequence parallelism gathers into, once per rank."""
    lingering_bytes: float = 0.0
    """Bytes per hidden unit and token that each layer gathers and frees, but that stay allocated until the GPU is done.

    The memory of a tensor that another stream uses is not given out again before that stream has come past it
    (torch.Tensor.record_stream): where the host runs ahead, what it has freed adds up.
    """
    waiting_gpus: float = math.inf
    """Number of GPUs from which on every message between nodes waits, and the host with it."""
    unsharded_waiting_gpus: float = math.inf
    """The same for pipelines whose gradients are all-reduced."""
    mask_bytes: float = 0.0
    """Bytes per sample and pair of positions of the attention mask; none with flash attention."""
    score_buffer: float = 0.0
    """Bytes per head and pair of positions of a buffer for scores that stays allocated; none with flash attention."""
    boundary_bytes: float = 0.0
    """Bytes per hidden unit and token that a stage keeps of each micro-batch in flight for its neighbours."""
    selective_share: float = 0.0
    """What selective recomputation keeps of a layer, as a share; 0 where it recomputes the core of attention alone."""
    checkpoint_bytes: float = 2.0
    """Bytes per hidden unit of the input that full recomputation keeps of a layer."""
    table_bytes: float = 0.0
    """Bytes per position and unit of a head that each layer keeps whatever the micro-batch: cosines and sines."""
    narrow_input_bytes: float = 0.0
    """Bytes per unit by which the kept input of a product is smaller where products are of 8 bits or fewer."""
    narrow_weight_bytes: float = 0.0
    """Bytes per parameter of a matrix of the quantised copies that are cached there beside weights in bf16."""
    variant: str = ""
    """The entry for another state of the framework; measured runs may be in either and do not say in which."""
    saved: LayerBytes = field(default_factory=LayerBytes)
    working: LayerBytes = field(default_factory=LayerBytes)
    """What the backward pass of one layer needs beside what was saved, at its attention and its feed-forward part."""
    head: HeadBytes = field(default_factory=HeadBytes)


_ABOUT = ("aliases", "like")


def load_framework(name: str) -> FrameworkSpec:
    """Return the framework of this name, or the one that it is another name for.

    >>> load_framework("ms-swift").name
    'megatron'
    """
    known = _entries()
    key = name.strip().lower()
    found = key if key in known else _aliases().get(key)
    if found is None:
        raise UnknownNameError("framework", name, [*known, *_aliases()])
    return _framework(found)


def titan_framework(compiles: bool, is_alone: bool) -> str:
    """Return the entry for torchtitan with or without torch.compile, on one GPU or on several.

    >>> titan_framework(False, True), titan_framework(True, False)
    ('torchtitan-autocast', 'torchtitan')
    """
    if is_alone:
        return "torchtitan-compiled" if compiles else "torchtitan-autocast"
    return "torchtitan" if compiles else "torchtitan-eager"


def known_frameworks() -> list[str]:
    """Return the names in the catalog, without aliases."""
    return list(_entries())


@functools.cache
def _framework(name: str) -> FrameworkSpec:
    entry = _entries()[name]
    base = _framework(entry["like"]) if "like" in entry else FrameworkSpec(name=name)
    values = {key: value for key, value in entry.items() if key not in _ABOUT}
    tables = {key: replace(getattr(base, key), **value) for key, value in values.items() if isinstance(value, dict)}
    return replace(base, name=name, **values | tables)


def _entries() -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = read_catalog("frameworks")["frameworks"]
    return entries


@functools.cache
def _aliases() -> dict[str, str]:
    return {alias: name for name, entry in _entries().items() for alias in entry.get("aliases", ())}
