"""The points of preset megatron that are worth a trial, by the documented rules and Megatron's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from zenith_tune.layouts.layout import RECOMPUTE_NAMES, Layout
from zenith_tune.layouts.rules import (
    BATCH,
    DENSE,
    DOCUMENTED_BATCH,
    DOCUMENTED_EXPERT_TENSOR,
    DOCUMENTED_WORLD,
    EVEN_CHUNKS,
    EXPERT_WORLD,
    EXPERTS,
    HEADS,
    INTERLEAVED_BATCHES,
    INTERLEAVING,
    LAYERS,
    QUERY_GROUPS,
    WHOLE_QUERY_GROUPS,
    WORLD,
    JobFacts,
    LayoutRule,
    first_reason,
    legal,
    rule_of,
)
from zenith_tune.presets.megatron.space import PointSpace
from zenith_tune.study.parameters import CategoricalParameter, Parameter, Params, Value

if TYPE_CHECKING:
    from zenith_tune.layouts.layout_batch import BoolArray, LayoutBatch, PointTable


RECOMPUTE_METHODS = ("uniform", "block")
MAX_RECOMPUTE_NUM_LAYERS = 4
"""The documented maximum of recompute_num_layers: every further value multiplies the whole space."""

DOCUMENTED = (DOCUMENTED_WORLD, DOCUMENTED_BATCH, DOCUMENTED_EXPERT_TENSOR, WHOLE_QUERY_GROUPS, LAYERS, DENSE)
# This preset writes no other split than the even one.
FOLDING = (
    *(WORLD, EXPERT_WORLD, BATCH, QUERY_GROUPS, HEADS, LAYERS),
    *(INTERLEAVING, INTERLEAVED_BATCHES, EVEN_CHUNKS, EXPERTS, DENSE),
)


def _stage(facts: JobFacts, point: Mapping[str, Any]) -> Any:
    return (facts.num_layers or 0) // point["pp"]


# The rules below are about the values of a point, or its columns, in place of a layout.

WHOLE_RECOMPUTE = rule_of(
    "whole_recompute",
    "recompute_num_layers must divide num_layers/pp",
    lambda facts, at: _stage(facts, at) % at["recompute_num_layers"] == 0,
    lambda facts, at: (
        f"{facts.num_layers}/{at['pp']} = {_stage(facts, at)} and "
        f"{_stage(facts, at)} % {at['recompute_num_layers']} != 0"
    ),
    asks="num_layers",
)
VISION = (
    rule_of(
        "vision_granularity",
        "recompute_granularity must be full for a vision-language model",
        lambda facts, at: at["recompute_granularity"] == "full",
        lambda facts, at: f"got {at['recompute_granularity']}",
    ),
    rule_of(
        "vision_method",
        "recompute_method must be uniform for a vision-language model",
        lambda facts, at: at["recompute_method"] == "uniform",
        lambda facts, at: f"got {at['recompute_method']}",
    ),
)
SELECTIVE_ONCE = LayoutRule(
    test=lambda facts, at: (
        (at["recompute_granularity"] == "full")
        | ((at["recompute_method"] == RECOMPUTE_METHODS[0]) & (at["recompute_num_layers"] == 1))
    ),
    message=lambda facts, at: (
        "selective recomputation takes neither recompute_method nor recompute_num_layers: "
        f"{at['recompute_method']} and {at['recompute_num_layers']} are the same run under "
        f"another name as {RECOMPUTE_METHODS[0]} and 1"
    ),
)


SIZES = ("tp", "pp", "cp", "ep", "etp")


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronSpace(PointSpace):
    """The choices of one job, and the rules that its points must keep."""

    n_gpus: int
    gbs: int
    mbs_max: int
    vp_max: int
    facts: JobFacts
    is_vision_language: bool
    folding: bool
    """Take the rules of Megatron Core and ms-swift in place of the documented ones."""
    selective_alone: bool
    """Write selective recomputation without a method and a number of layers, which Megatron Core refuses with it."""
    fixed: Mapping[str, Value] = field(default_factory=dict)
    """What is not searched, because the command is a template without a place for it."""

    @property
    def of_layout(self) -> tuple[LayoutRule, ...]:
        """The rules about the layout of a point."""
        return FOLDING if self.folding else DOCUMENTED

    @property
    def of_point(self) -> tuple[LayoutRule, ...]:
        """The rules about its own values."""
        documented = () if self.folding else (WHOLE_RECOMPUTE,)
        vision = VISION if self.is_vision_language else ()
        return (*documented, *vision, *((SELECTIVE_ONCE,) if self.selective_alone else ()))

    def parameters(self) -> dict[str, Parameter]:
        sizes = _powers_of_two(self.n_gpus)
        micro_batches = [mbs for mbs in _powers_of_two(self.mbs_max) if self.gbs % mbs == 0]
        chunks = {"vp": CategoricalParameter(_powers_of_two(self.vp_max))} if self.vp_max > 1 else {}
        found: dict[str, Parameter] = {
            **{name: CategoricalParameter(sizes) for name in SIZES},
            "mbs": CategoricalParameter(micro_batches),
            "recompute_granularity": CategoricalParameter(["full", "selective"]),
            "recompute_method": CategoricalParameter(RECOMPUTE_METHODS),
            "recompute_num_layers": CategoricalParameter(range(1, MAX_RECOMPUTE_NUM_LAYERS + 1)),
            "vit_gradient_checkpointing": CategoricalParameter(["true", "false"]),
            **chunks,
        }
        return found | {name: CategoricalParameter([value]) for name, value in self.fixed.items() if name in found}

    def layout(self, params: Mapping[str, Value]) -> Layout:
        """Return the layout of a point, without what its command says of sharding and of sequence parallelism."""
        sizes: dict[str, Any] = {name: int(params[name]) for name in (*SIZES, "vp") if name in params}
        is_full = params.get("recompute_granularity") == "full"
        return Layout(
            num_gpus=self.n_gpus,
            micro_batch=int(params["mbs"]),
            global_batch=self.gbs,
            recompute=f"full/{params.get('recompute_method', 'uniform')}" if is_full else "selective",
            recompute_layers=int(params.get("recompute_num_layers", 1)) if is_full else 0,
            **sizes,
        )

    def layouts(self, table: PointTable, *, zero: int = 0, sequence_parallel: Any = False) -> LayoutBatch:
        from zenith_tune.layouts.layout_batch import laid_over

        columns: dict[str, Any] = {name: table[name] for name in (*SIZES, "vp", "mbs") if name in table}
        if "recompute_num_layers" in table:
            is_full = table["recompute_granularity"] == "full"
            uniform, block = (RECOMPUTE_NAMES.index(f"full/{method}") for method in RECOMPUTE_METHODS)
            method = uniform + (block - uniform) * (table["recompute_method"] == RECOMPUTE_METHODS[1])
            columns["recompute"] = method * is_full + RECOMPUTE_NAMES.index("selective") * (is_full ^ True)
            columns["recompute_layers"] = table["recompute_num_layers"] * is_full
        return laid_over(self.n_gpus, gbs=self.gbs, zero=zero, sequence_parallel=sequence_parallel, **columns)

    def explain(self, params: Mapping[str, Value]) -> str | None:
        broken = first_reason(self.of_layout, self.facts, self.layout(params))
        return broken or first_reason(self.of_point, self.facts, params)

    def near_points(self) -> Iterator[Params]:
        """Yield nothing: the documented preset has no levers."""
        return iter(())

    def tables(self) -> Iterator[PointTable]:
        from zenith_tune.layouts.layout_batch import PointTable, grow

        axes = [(name, parameter.grid(1)) for name, parameter in self.parameters().items()]

        def holds(name: str, table: PointTable) -> BoolArray:
            # Sizes that do not divide the GPUs, most of the space, are left out before the rest.
            layouts, world = self.layouts(table), (EXPERT_WORLD, self.of_layout[0])
            mask: BoolArray = (layouts.num_gpus == self.n_gpus) & legal(world, self.facts, layouts)
            if name == axes[-1][0]:
                mask = mask & legal(self.of_layout, self.facts, layouts) & legal(self.of_point, self.facts, table)
            return mask

        return grow(PointTable.of_one(), axes, holds)


def _powers_of_two(maximum: int) -> list[int]:
    return [2**exponent for exponent in range(maximum.bit_length())]
