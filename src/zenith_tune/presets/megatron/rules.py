"""Which points of the Megatron search space are worth a trial: the documented rules, and Megatron's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from zenith_tune.layouts import constraints, megatron_constraints
from zenith_tune.layouts.layout import Layout
from zenith_tune.study.parameters import Value

RECOMPUTE_METHODS = ("uniform", "block")
MAX_RECOMPUTE_NUM_LAYERS = 4
"""The documented maximum of recompute_num_layers: every further value multiplies the whole space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronRules:
    """Hold what is known of the model; None where nothing is known, and no rule then applies."""

    num_layers: int | None = None
    num_query_groups: int | None = None
    num_attention_heads: int | None = None
    num_experts: int | None = None
    knows_experts: bool = False
    """Whether `num_experts` was looked up, so that None means a model without experts."""
    is_vision_language: bool = False

    def explain_documented(self, layout: Layout, params: Mapping[str, Value]) -> str | None:
        """Return the first documented rule that a point breaks, in words."""
        return _first(self._documented(layout, _Recompute.of(params)))

    def explain_folding(self, layout: Layout, params: Mapping[str, Value]) -> str | None:
        """Return the first rule of Megatron Core and ms-swift that a point breaks, in words."""
        return _first(self._folding(layout, _Recompute.of(params)))

    # A rule may divide by what the rule before it has checked: the first reason found ends the walk.

    def _documented(self, at: Layout, recompute: _Recompute) -> Iterator[str | None]:
        yield constraints.check_documented_world(at.num_gpus, tp=at.tp, pp=at.pp, cp=at.cp, ep=at.ep, etp=at.etp)
        dp = at.num_gpus // (at.tp * at.pp * at.cp * at.ep * at.etp)
        yield constraints.check_batch(at.global_batch, dp=dp, mbs=at.micro_batch)
        yield constraints.check_expert_tensor(at.etp, tp=at.tp)
        if self.num_query_groups is not None:
            yield constraints.check_query_groups(self.num_query_groups, tp=at.tp)
        if self.num_layers is not None:
            yield constraints.check_layers(self.num_layers, pp=at.pp)
            yield constraints.check_recompute_layers(recompute.num_layers, num_layers=self.num_layers, pp=at.pp)
        yield from self._vision(recompute)

    def _folding(self, at: Layout, recompute: _Recompute) -> Iterator[str | None]:
        yield constraints.check_dense_world(at.num_gpus, tp=at.tp, pp=at.pp, cp=at.cp)
        yield constraints.check_expert_world(at.num_gpus, etp=at.etp, ep=at.ep, pp=at.pp)
        yield constraints.check_batch(at.global_batch, dp=at.dp, mbs=at.micro_batch)
        if self.num_query_groups is not None:
            yield constraints.check_query_groups_either_way(self.num_query_groups, tp=at.tp)
        if self.num_attention_heads is not None:
            yield constraints.check_attention_heads(self.num_attention_heads, tp=at.tp)
        if self.num_layers is not None:
            yield constraints.check_layers(self.num_layers, pp=at.pp)
        yield from self._interleaving(at)
        if self.knows_experts:
            yield constraints.check_experts(self.num_experts, ep=at.ep)
        yield from self._vision(recompute)
        if recompute.granularity == "selective":
            yield constraints.check_selective_once(
                recompute.method, recompute.num_layers, first_method=RECOMPUTE_METHODS[0], first_num_layers=1
            )

    def _interleaving(self, at: Layout) -> Iterator[str | None]:
        yield megatron_constraints.check_interleaving(at.vp, pp=at.pp)
        yield megatron_constraints.check_interleaved_batches(at.num_micro_batches, pp=at.pp, vp=at.vp)
        if self.num_layers is not None and at.vp > 1:
            # Not check_pipeline_split: this preset writes no other split than the even one.
            yield constraints.check_multiple("num_layers", self.num_layers, "pp*vp", at.pp, at.vp)

    def _vision(self, recompute: _Recompute) -> Iterator[str | None]:
        if self.is_vision_language:
            yield constraints.check_vision_granularity(recompute.granularity)
            yield constraints.check_vision_method(recompute.method)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recompute:
    """Hold how activations are recomputed."""

    granularity: str
    method: str
    num_layers: int

    @classmethod
    def of(cls, params: Mapping[str, Value]) -> _Recompute:
        return cls(
            granularity=str(params["recompute_granularity"]),
            method=str(params["recompute_method"]),
            num_layers=int(params["recompute_num_layers"]),
        )


def _first(reasons: Iterator[str | None]) -> str | None:
    return next((reason for reason in reasons if reason is not None), None)
