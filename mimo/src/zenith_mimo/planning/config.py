"""The shapes of a multimodal model's modules, which ranks train which, and how each is split over its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zenith_tune.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    """The blocks that every module has."""

    num_layers: int
    hidden_size: int
    num_heads: int
    ffn_size: int

    def __post_init__(self) -> None:
        for name in ("num_layers", "hidden_size", "num_heads", "ffn_size"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, but got {getattr(self, name)}.")
        if self.hidden_size % self.num_heads:
            raise UsageError(
                f"hidden size must be a multiple of the heads, but got {self.hidden_size} and {self.num_heads}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """An encoder of items (images, sounds), each a fixed number of patches, each patch one token of the text."""

    transformer: TransformerConfig
    patch_size: int
    """Numbers in a patch."""
    patches_per_item: int
    token_id: int
    """The token that stands for a patch in the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageConfig:
    """A decoder over text in which the encoders' outputs stand at their tokens."""

    transformer: TransformerConfig
    vocab_size: int
    seq_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MimoConfig:
    """A multimodal model: encoders by name, and the language model that they feed."""

    encoders: Mapping[str, EncoderConfig]
    language: LanguageConfig
    seed: int = 0
    recompute: frozenset[str] = frozenset()
    """Modules whose blocks run forward again in the backward pass instead of keeping their activations."""
    frozen: frozenset[str] = frozenset()
    """Untrained parts: modules (`language`) or parts of one (`vision.blocks`)."""

    def is_frozen(self, parameter: str) -> bool:
        """Return whether a parameter, named from its module on, is frozen."""
        return any(f"{parameter}.".startswith(f"{part}.") for part in self.frozen)

    def __post_init__(self) -> None:
        num_special = max((encoder.token_id for encoder in self.encoders.values()), default=-1) + 1
        if self.language.vocab_size <= num_special:
            raise UsageError(
                f"the vocabulary must have words besides the {num_special} tokens of items, but has "
                f"{self.language.vocab_size}: enlarge it."
            )

    def item_tokens(self, num_items: int) -> dict[str, range]:
        """Return where the items stand in a text that has so many for each encoder; raises UsageError without room."""
        found, begin, length = {}, 1, self.language.seq_length
        for name, encoder in sorted(self.encoders.items()):
            end = begin + num_items * encoder.patches_per_item
            if end >= length:
                raise UsageError(
                    f"{length} tokens have no room for {num_items} items of {encoder.patches_per_item} patches "
                    f"and some text: lengthen the sequence, or take fewer items."
                )
            found[name], begin = range(begin, end), end
        return found


LANGUAGE = "language"
"""The module at the end of the graph; every other one is an encoder that feeds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleLayout:
    """One module's split over tp * pp * dp consecutive ranks from `offset` on, tp varying fastest and dp slowest."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    offset: int = 0
    cp: int = 1
    ep: int = 1
    """Context and expert parallelism, which the runtime does not have: 1."""

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, but got {getattr(self, name)}.")
        for name, what in {"cp": "context", "ep": "expert"}.items():
            if getattr(self, name) != 1:
                problem = f"modules have no {what} parallelism here, but got {name} {getattr(self, name)}"
                raise UsageError(problem, hint="set it to 1, or give its ranks to tp, pp or dp")
        if self.offset < 0:
            raise UsageError(f"offset must be at least 0, but got {self.offset}.")

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.tp * self.pp * self.dp

    @property
    def span(self) -> range:
        """The ranks themselves."""
        return range(self.offset, self.offset + self.size)

    def __str__(self) -> str:
        """Show the degrees and the ranks."""
        return f"tp {self.tp} pp {self.pp} dp {self.dp} on ranks {self.span[0]} to {self.span[-1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MimoLayout:
    """The place of every module of a multimodal model: all on the same ranks, or each on its own."""

    modules: Mapping[str, ModuleLayout]

    def __post_init__(self) -> None:
        if LANGUAGE not in self.modules:
            raise UsageError(f"one module must be named {LANGUAGE!r}, but got {sorted(self.modules)}.")
        if self.is_colocated:
            self._check_colocated()
        else:
            self._check_disjoint()
        for name in self.encoders:
            small, large = sorted((self.modules[name].dp, self.language.dp))
            if large % small:
                raise UsageError(
                    f"the data-parallel sizes of {name} and {LANGUAGE} must divide one another, but got "
                    f"{self.modules[name].dp} and {self.language.dp}: change one of them."
                )

    @property
    def is_colocated(self) -> bool:
        """Whether all modules live on all ranks."""
        return len({(layout.offset, layout.size) for layout in self.modules.values()}) == 1

    @property
    def language(self) -> ModuleLayout:
        """The layout of the language model."""
        return self.modules[LANGUAGE]

    @property
    def encoders(self) -> list[str]:
        """The names of the modules that feed the language model, in the order every rank uses."""
        return sorted(name for name in self.modules if name != LANGUAGE)

    @property
    def world_size(self) -> int:
        """The number of ranks of all modules together."""
        return max(layout.span.stop for layout in self.modules.values())

    def stages_after(self, name: str, stage: int) -> int:
        """Return how many stages a micro-batch passes after this one."""
        behind = self.modules[name].pp - 1 - stage
        return behind if name == LANGUAGE else behind + self.language.pp

    def num_microbatches(self, micro_batch_size: int, global_batch_size: int) -> int:
        """Return the micro-batches of a step; `micro_batch_size` counts samples per replica of the language model."""
        together = micro_batch_size * self.language.dp
        if micro_batch_size < 1 or global_batch_size < 1 or global_batch_size % together:
            raise UsageError(
                f"the global batch must be a multiple of micro-batch size times the language model's dp, but got "
                f"{global_batch_size} and {micro_batch_size} * {self.language.dp} = {together}: change one of them."
            )
        for name in self.encoders:
            dp = self.modules[name].dp
            if together % dp:
                raise UsageError(
                    f"micro-batch size times the language model's dp must be a multiple of {name}'s dp, but got "
                    f"{micro_batch_size} * {self.language.dp} = {together} and {dp}: change one of them."
                )
        return global_batch_size // together

    def _check_colocated(self) -> None:
        for name, layout in self.modules.items():
            if layout.pp != 1 and len(self.modules) > 1:
                raise UsageError(
                    f"modules that share their ranks cannot be pipelined, but {name} has pp {layout.pp}",
                    hint="set it to 1, or give each module ranks of its own.",
                )
        if self.language.offset:
            raise UsageError(
                f"the modules must begin at rank 0, but begin at {self.language.offset}", hint="set offset to 0."
            )

    def _check_disjoint(self) -> None:
        covered = sorted(rank for layout in self.modules.values() for rank in layout.span)
        if covered != list(range(self.world_size)):
            spans = ", ".join(f"{name}: {layout}" for name, layout in sorted(self.modules.items()))
            raise UsageError(
                f"modules must share all their ranks, or cover the world without gap or overlap, but got {spans}: "
                f"change the offsets."
            )


def lane_partners(lane: int, dp: int, other_dp: int) -> list[int]:
    """Return the lanes of the other side that hold samples of this lane."""
    if other_dp >= dp:
        ratio = other_dp // dp
        return list(range(lane * ratio, (lane + 1) * ratio))
    return [lane * other_dp // dp]


def rows_of_lanes(rows_per_sample: list[int], num_lanes: int) -> list[int]:
    """Return the rows that each of several lanes takes, which share the samples evenly."""
    share = len(rows_per_sample) // num_lanes
    return [sum(rows_per_sample[i * share : (i + 1) * share]) for i in range(num_lanes)]
