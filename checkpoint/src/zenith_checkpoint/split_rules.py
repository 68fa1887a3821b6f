"""How Megatron splits each weight over tensor ranks and stages, by the end of its name.

Both families of names are known: Megatron Core's (linear_qkv, linear_fc1 ...) and Megatron-LM's older ones
(query_key_value, dense_h_to_4h ...). Linear weights are [out, in]: a column-parallel one is split by its rows and a
row-parallel one by its columns.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from itertools import accumulate

from zenith_tune.errors import UsageError


class Split(enum.Enum):
    """The part of a weight that each tensor rank holds."""

    WHOLE = "whole"
    COLUMN = "column"
    ROW = "row"
    GATED = "gated"
    """Each rank holds its part of the gate on top of its part of the up-projection."""
    VOCABULARY = "vocabulary"
    """Split by rows, of which the last ones may be padding."""
    UP = "up"
    """Column or gated, by the width of the down-projection."""
    QKV = "qkv"
    """Split by rows, query group after query group: its queries, its key and its value."""


class Home(enum.Enum):
    """The pipeline stages that hold a weight."""

    FIRST = "first"
    LAST = "last"
    LAYER = "layer"
    UNKNOWN = "unknown"


_SPLITS = [
    (r"(linear_qkv|query_key_value)\.(weight|bias)", Split.QKV),
    (r"(linear_q_proj|linear_q_up_proj|linear_kv_up_proj|linear_q|linear_kv|eh_proj)\.(weight|bias)", Split.COLUMN),
    (r"inter_attention\.(query|key_value)\.(weight|bias)", Split.COLUMN),
    (r"core_attention\.softmax_offset", Split.COLUMN),
    (r"(linear_fc1|dense_h_to_4h)\.(weight|bias)[0-9]*", Split.UP),
    (r"(linear_proj|linear_fc2|dense_4h_to_h|(self_|inter_)?attention\.dense)\.weight[0-9]*", Split.ROW),
    (r"(word_embeddings|output_layer|word_embeddings_for_head)\.weight", Split.VOCABULARY),
    (r"(output_layer|lm_head)\.bias", Split.VOCABULARY),
]
_WHOLE = re.compile(
    r"(?:.*\.)?(router|(position|tokentype)_embeddings|linear_(q|kv)_down_proj|fc[12]_latent_proj|indexer\.linear_\w+"
    r"|pooler\.dense|binary_head|lm_head\.dense)\.(weight|bias)|(?:.*\.)?shared_experts\.gate_weight",
    re.DOTALL,
)
"""Matrices that Megatron keeps whole on every rank."""
_STATE_SPACE = re.compile(r"(?:^|.*\.)mixer\.", re.DOTALL)
_BY_NAME = [(re.compile(rf"(?:.*\.)?{ending}", re.DOTALL), split) for ending, split in _SPLITS]
_LAYER = re.compile(r"(?:(.*?)\.)?layers\.([0-9]{1,6})\.(.*)", re.DOTALL)
_MTP = re.compile(r"(?:^|.*\.)mtp\.", re.DOTALL)
_FIRST = re.compile(r"(?:^|.*\.)embedding\.", re.DOTALL)
_LAST = re.compile(
    r"(?:^|.*\.)(final_layernorm|final_norm|output_layer|word_embeddings_for_head|lm_head|pooler|binary_head)\.",
    re.DOTALL,
)
_FINAL_NORM = re.compile(r"(?:^|.*\.)(final_layernorm|final_norm)\.", re.DOTALL)
_EXPERT_NUMBER = re.compile(r"(local_experts\.|linear_fc[12]\.(?:weight|bias))([0-9]{1,6})(?=\.|$)")
_EXPERT = re.compile(r".*\.(?:experts|local_experts)\.", re.DOTALL)
_EXPERT_INDEX = re.compile(
    r"(.*\.)(?:local_experts\.([0-9]{1,6})\.|experts\.linear_fc[12]\.weight([0-9]{1,6})$)", re.DOTALL
)
_GROUPED = re.compile(r".*\.experts\.weight[12]", re.DOTALL)

HEAD, TIED_HEAD = "output_layer.weight", "word_embeddings_for_head.weight"
EMBEDDING = "embedding.word_embeddings.weight"


def split_of(name: str) -> Split:
    """Return how a weight is split; one that no rule knows is whole on every rank.

    >>> split_of("decoder.layers.0.mlp.linear_fc2.weight").name, split_of("decoder.layers.0.mlp.linear_fc2.bias").name
    ('ROW', 'WHOLE')
    """
    return next((split for pattern, split in _BY_NAME if pattern.fullmatch(name)), Split.WHOLE)


def is_known(name: str, num_axes: int) -> bool:
    """Tell whether a rule says how a weight is split; a vector that no rule knows is whole, as norms and biases are.

    >>> is_known("decoder.layers.0.mlp.router.weight", 2), is_known("model.layers.0.self_attn.q_proj.weight", 2)
    (True, False)
    """
    if is_state_space(name):  # its vectors are split too
        return False
    return num_axes < 2 or split_of(name) is not Split.WHOLE or _WHOLE.fullmatch(name) is not None


def is_state_space(name: str) -> bool:
    """Tell whether a weight belongs to a Mamba mixer, which is split in parts of its own."""
    return _STATE_SPACE.match(name) is not None


def home_of(name: str) -> Home:
    """Return where in the pipeline a weight lives; the layers of multi-token prediction are on the last stage."""
    if _MTP.match(name):
        return Home.LAST
    if layer_of(name) is not None:
        return Home.LAYER
    if _LAST.match(name):
        return Home.LAST
    return Home.FIRST if _FIRST.match(name) else Home.UNKNOWN


def is_mtp(name: str) -> bool:
    """Tell whether a weight belongs to multi-token prediction."""
    return _MTP.match(name) is not None


def layer_of(name: str) -> tuple[str, int] | None:
    """Return the list of layers that a weight is in, and its number there.

    >>> layer_of("decoder.layers.7.mlp.linear_fc1.weight"), layer_of("decoder.final_layernorm.weight")
    (('decoder', 7), None)
    """
    match = None if _MTP.match(name) else _LAYER.fullmatch(name)
    return (match[1] or "", int(match[2])) if match else None


def in_layer(name: str) -> str | None:
    """Return a weight's name inside its layer, the same for all layers and all experts.

    >>> in_layer("decoder.layers.7.mlp.experts.local_experts.3.linear_fc1.weight")
    'mlp.experts.local_experts.N.linear_fc1.weight'
    """
    match = None if _MTP.match(name) else _LAYER.fullmatch(name)
    return _EXPERT_NUMBER.sub(r"\1N", match[3]) if match else None


def renumbered(name: str, number: int) -> str:
    """Return the weight's name in another layer.

    >>> renumbered("decoder.layers.7.mlp.linear_fc1.weight", 0)
    'decoder.layers.0.mlp.linear_fc1.weight'
    """
    match = _LAYER.fullmatch(name)
    assert match is not None, name
    return f"{name[: match.start(2)]}{number}{name[match.end(2) :]}"


def is_final_norm(name: str) -> bool:
    """Tell whether a weight belongs to the norm behind the last layer."""
    return _FINAL_NORM.match(name) is not None


def is_expert(name: str) -> bool:
    """Tell whether a weight belongs to a routed expert, not to a shared one."""
    return _EXPERT.match(name) is not None


def expert_of(name: str) -> tuple[str, int] | None:
    """Return the mixture that an expert's weight is in, and the expert's number."""
    match = _EXPERT_INDEX.match(name)
    if match is None:
        return None
    return match[1].removesuffix("experts."), int(match[2] if match[2] is not None else match[3])


def expert_index(name: str) -> int | None:
    """Return the number of the expert that a weight or a bias belongs to.

    >>> expert_index("mlp.experts.linear_fc1.bias12"), expert_index("mlp.router.weight")
    (12, None)
    """
    match = _EXPERT_NUMBER.search(name)
    return int(match[2]) if match else None


def with_expert(name: str, number: int) -> str:
    """Return the name of the same weight of another expert.

    >>> with_expert("mlp.experts.local_experts.3.linear_fc1.weight", 7)
    'mlp.experts.local_experts.7.linear_fc1.weight'
    """
    return _EXPERT_NUMBER.sub(rf"\g<1>{number}", name)


def is_grouped(name: str) -> bool:
    """Tell whether one tensor holds the weights of all experts, in an order of its own."""
    return _GROUPED.fullmatch(name) is not None


def down_of(name: str) -> str:
    """Return the down-projection's weight that goes with an up-projection's weight or bias.

    >>> down_of("mlp.experts.linear_fc1.bias3"), down_of("mlp.dense_h_to_4h.weight")
    ('mlp.experts.linear_fc2.weight3', 'mlp.dense_4h_to_h.weight')
    """
    module, _, leaf = name.rpartition(".")
    down = module.replace("linear_fc1", "linear_fc2").replace("dense_h_to_4h", "dense_4h_to_h")
    return f"{down}.{leaf.replace('bias', 'weight')}"


class Numbering(enum.Enum):
    """What the number in a layer's name counts."""

    LOCAL = "local"
    GLOBAL = "global"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNumbers:
    """The number of layers of each stage, and how they are numbered."""

    per_stage: tuple[int, ...]
    numbering: Numbering

    @property
    def num_layers(self) -> int:
        """Layers of all stages."""
        return sum(self.per_stage)

    def first(self, stage: int) -> int:
        """Return the global number of a stage's first layer."""
        return sum(self.per_stage[:stage])

    def to_global(self, stage: int, number: int) -> int:
        """Return the global number of a layer by its number in the shards of a stage."""
        return number + (self.first(stage) if self.numbering is Numbering.LOCAL else 0)

    def place(self, number: int) -> tuple[int, int]:
        """Return the stage of a layer by its global number, and its number in the shards of that stage.

        >>> LayerNumbers(per_stage=(2, 3), numbering=Numbering.LOCAL).place(3)
        (1, 1)
        """
        ends = accumulate(self.per_stage)
        stage = next(stage for stage, end in enumerate(ends) if number < end)
        return stage, number - (self.first(stage) if self.numbering is Numbering.LOCAL else 0)


def find_numbers(names_by_stage: list[list[str]]) -> LayerNumbers:
    """Return how the layers of a checkpoint are numbered, or refuse what is numbered neither way."""
    places = [{place for name in names if (place := layer_of(name)) is not None} for names in names_by_stage]
    lists = sorted({container for stage in places for container, _ in stage})
    if len(lists) > 1:
        problem = f"the model must have one list of layers, but has {len(lists)} ({', '.join(map(repr, lists))})"
        raise UsageError(f"{problem}: encoder-decoder and multimodal checkpoints are not supported")
    numbers = [sorted(number for _, number in stage) for stage in places]
    per_stage = tuple(len(stage) for stage in numbers)
    starts = [sum(per_stage[:stage]) for stage in range(len(per_stage))]
    if all(stage == list(range(len(stage))) for stage in numbers):
        return LayerNumbers(per_stage=per_stage, numbering=Numbering.LOCAL)
    if all(stage == list(range(start, start + len(stage))) for start, stage in zip(starts, numbers, strict=True)):
        return LayerNumbers(per_stage=per_stage, numbering=Numbering.GLOBAL)
    shown = "; ".join(f"stage {stage}: {', '.join(map(str, found)) or 'none'}" for stage, found in enumerate(numbers))
    problem = "layers must be numbered from 0 on each stage, or through all stages without a gap"
    raise UsageError(f"{problem}, but are {shown}: a shard is missing or of another checkpoint")


def spread(num_layers: int, pp: int, given: tuple[int, ...] | None, numbering: Numbering) -> LayerNumbers:
    """Return the layers of each stage of a new layout: those given, or the same number on each."""
    if given is not None:
        if len(given) != pp or sum(given) != num_layers:
            problem = f"--layers-per-stage must have {pp} numbers that add up to {num_layers} layers"
            raise UsageError(f"{problem}, but got {','.join(map(str, given))}", hint="change it")
        return LayerNumbers(per_stage=given, numbering=numbering)
    if num_layers % pp:
        problem = f"{num_layers} layers cannot be spread evenly over {pp} stages"
        raise UsageError(problem, hint="choose another --pp, or say how by --layers-per-stage")
    return LayerNumbers(per_stage=(num_layers // pp,) * pp, numbering=numbering)
