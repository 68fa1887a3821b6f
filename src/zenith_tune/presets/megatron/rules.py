"""Which points of the Megatron search space are worth a trial: the documented rules, and Megatron's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zenith_tune.layouts.layout import Layout
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
    rule_of,
)
from zenith_tune.study.parameters import Value

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronRules:
    """Hold what is known of the model, and the rules that follow."""

    facts: JobFacts = field(default_factory=JobFacts)
    is_vision_language: bool = False
    folding: bool = False
    """Take the rules of Megatron Core and ms-swift in place of the documented ones."""

    @property
    def of_layout(self) -> tuple[LayoutRule, ...]:
        """The rules about the layout of a point."""
        return FOLDING if self.folding else DOCUMENTED

    @property
    def of_point(self) -> tuple[LayoutRule, ...]:
        """The rules about its own values."""
        vision = VISION if self.is_vision_language else ()
        return (*vision, SELECTIVE_ONCE) if self.folding else (WHOLE_RECOMPUTE, *vision)

    def explain(self, layout: Layout, params: Mapping[str, Value]) -> str | None:
        """Return why a point breaks the first rule that it breaks, or None."""
        reason = first_reason(self.of_layout, self.facts, layout)
        return reason or first_reason(self.of_point, self.facts, params)
