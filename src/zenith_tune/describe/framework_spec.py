"""Facts about a training framework's memory and time, taken from its code; nothing here is fitted."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, replace
from typing import Any

from zenith_tune.describe.catalog import read_catalog
from zenith_tune.errors import UnknownNameError


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """Bytes that one layer keeps or needs temporarily, per token and unit of each width."""

    attention_hidden: float = 4.0
    """Bytes per hidden unit around attention: the inputs of norm and projections, split by sequence parallelism."""
    whole: float = 0.0
    """Bytes per hidden unit that sequence parallelism does not split: inputs kept as gathered."""
    query: float = 2.0
    key_value: float = 2.0
    """Bytes per unit of keys and values together."""
    value: float = 2.0
    """Bytes per unit of the attention's output, which its projection reads."""
    heads: float = 4.0
    """Bytes per head: the logarithms that flash attention keeps; none without it."""
    scores: float = 2.0
    """Bytes per head and key position; none with flash attention."""
    mlp_hidden: float = 4.0
    """Bytes per hidden unit around the feed-forward part, split by sequence parallelism."""
    ffn_gated: float = 6.0
    """Bytes per unit of the feed-forward width with three matrices."""
    ffn_plain: float = 4.0
    """Bytes per unit of the feed-forward width with two matrices."""
    expert_hidden: float = 2.0
    """Bytes per hidden unit and chosen expert: the dispatched tokens."""
    router: float = 0.0
    """Bytes per expert: logits, probabilities and maps of the router."""
    qk_norm: float = 0.0
    """Bytes per unit of queries and keys, where they are normed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadBytes:
    """Bytes that the output layer and the loss need, per token and unit of each width."""

    hidden: float = 4.0
    """Bytes per hidden unit: the final norm's input and output."""
    forward_hidden: float = 0.0
    """Further bytes per hidden unit while the loss is computed."""
    forward_vocab: float = 6.0
    """Bytes per logit while the loss is computed: logits and their copies."""
    backward_vocab: float = 6.0
    """Bytes per logit while its gradient is computed."""
    weight_gradient: float = 0.0
    """Bytes per parameter of the output layer: its gradient before accumulation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPipeline:
    """A pipeline whose stages a job writes down itself; chunk k belongs to rank k modulo their number."""

    num_ranks: int
    layers: tuple[int, ...]
    """Layers of each chunk, in the order of the model."""
    mtp_layers: tuple[int, ...]
    """Layers for multi-token prediction of each chunk."""

    def on_rank(self, rank: int) -> int:
        """Return the layers of a rank."""
        return sum(self.layers[rank :: self.num_ranks])

    @property
    def mtp_rank(self) -> int:
        """The rank with the layers for multi-token prediction."""
        return max(range(len(self.layers)), key=lambda chunk: (self.mtp_layers[chunk], chunk)) % self.num_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkSpec:
    """The facts about one framework that the estimates need."""

    name: str
    weight_bytes: float = 2.0
    """Bytes per parameter of the weights that forward and backward read."""
    gradient_bytes: float = 4.0
    """Bytes per parameter of the accumulated gradients."""
    reduced_gradient_bytes: float = 2.0
    """Bytes per parameter of the gradients that data-parallel ranks exchange."""
    optimizer_bytes: float = 12.0
    """Bytes per parameter of the optimizer: a master copy and two moments in fp32."""
    host_bytes: float = 0.0
    """Bytes per trained parameter of an optimizer in the host's memory, whose processors then update the weights."""
    step_bytes: float = 0.0
    """Temporary bytes per updated parameter of the optimizer's step."""
    bucket_bytes: float = 0.0
    """Bytes per parameter of the separate buckets in which unsharded gradients are reduced."""
    sync_bytes: float = 0.0
    """Temporary bytes per unsharded parameter of reducing sharded gradients."""
    cast_bytes: float = 0.0
    """Bytes per matrix parameter of the half-precision copy that autocast keeps for the backward pass."""
    frees_gradients: bool = False
    """Whether gradients are freed after each step."""
    vocab_multiple: int = 1
    """Multiple to which each rank's share of the vocabulary is padded."""
    pipeline_split: str = "even"
    """even: the same number of layers everywhere; units: embedding and output count as a layer each, as in torchtitan;
    cost: balanced by cost, as nanotron does."""
    own_pipeline: OwnPipeline | None = None
    """The one that layouts of as many ranks and chunks have; of the job, as no catalog entry has any."""
    expands_key_values: bool = False
    """Whether unfused attention repeats keys and values for every query head and keeps the projection."""
    gather_bytes: float = 0.0
    """Bytes per hidden unit and token of the buffer into which sequence parallelism gathers, one per rank."""
    lingering_bytes: float = 0.0
    """Bytes per hidden unit and token that a layer frees but that stay allocated until the GPU is done.

    The memory of a tensor in use by another stream is only reused after it (torch.Tensor.record_stream): where the
    host runs ahead, freed tensors accumulate.
    """
    waiting_gpus: float = math.inf
    """Least number of GPUs at which every message between nodes waits, and the host with it."""
    unsharded_waiting_gpus: float = math.inf
    """Least number of GPUs at which they wait in pipelines whose gradients are all-reduced."""
    mask_bytes: float = 0.0
    """Bytes per sample and pair of positions of the attention mask; none with flash attention."""
    score_buffer: float = 0.0
    """Bytes per head and pair of positions of a permanent buffer for scores; none with flash attention."""
    boundary_bytes: float = 0.0
    """Bytes per hidden unit and token that a stage keeps for its neighbours, per micro-batch in flight."""
    selective_share: float = 0.0
    """Share of a layer that selective recomputation keeps; 0 where it recomputes only the core of attention."""
    checkpoint_bytes: float = 2.0
    """Bytes per hidden unit of the layer input that full recomputation keeps."""
    table_bytes: float = 0.0
    """Bytes per position and head unit of each layer's cosines and sines, whatever the micro-batch."""
    narrow_input_bytes: float = 0.0
    """Bytes per unit saved on the kept input of a product of 8 bits or fewer."""
    narrow_weight_bytes: float = 0.0
    """Bytes per matrix parameter of the quantised copies that are cached next to bf16 weights."""
    variant: str = ""
    """The catalog entry for another state of the framework; measured runs do not state which one they are in."""
    saved: LayerBytes = field(default_factory=LayerBytes)
    working: LayerBytes = field(default_factory=LayerBytes)
    """What the backward pass of one layer needs in addition to what was saved."""
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
    """Return the entry for torchtitan with or without torch.compile, on one GPU or on several."""
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
