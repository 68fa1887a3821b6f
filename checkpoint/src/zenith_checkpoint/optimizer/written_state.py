"""An optimizer's state as Megatron loads it: in the file of each rank, flat next to it, or as tensors of torch_dist."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from zenith_checkpoint.joined_model import JoinedModel
from zenith_checkpoint.megatron_names import of_expert_rank, stacked
from zenith_checkpoint.new_layout import NewLayout
from zenith_checkpoint.optimizer.flat_buffers import by_dtype, in_buckets, laid_flat, sizes_of
from zenith_checkpoint.optimizer.joined_state import JoinedOptimizer
from zenith_checkpoint.optimizer.rank_files import MASTERS, OPTIMIZER, STATE
from zenith_checkpoint.optimizer.state import (
    MASTER,
    PARAM_GROUPS,
    SCALER,
    SHARDING_TYPE,
    STEP,
    Groups,
    LeftOutError,
    by_optimizer,
    decays,
    has_decay,
    in_order,
    is_member,
    is_parameter,
)
from zenith_checkpoint.split_rules import is_expert
from zenith_checkpoint.tensors import JoinedTensor

RESHARDABLE = "fully_reshardable"
"""What Megatron Core reads in any layout, from 0.15 on."""
METADATA = {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}

Tensors = Mapping[str, JoinedTensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenOptimizer:
    """The optimizer's state of a whole model, and the layout that it is written for."""

    joined: JoinedOptimizer
    layouts: Mapping[str, NewLayout]
    weights: NewLayout
    groups: tuple[Groups, ...]
    ep: int
    is_tied: bool
    is_named: bool
    """Whether it stands in files of its own that are named after ranks, in the order of the weights there."""
    args: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        joined: JoinedOptimizer,
        model: JoinedModel,
        weights: NewLayout,
        *,
        source_tp: int,
        ep: int,
        args: Mapping[str, Any],
        is_named: bool,
    ) -> WrittenOptimizer:
        """Cut the state as the weights are cut."""
        if is_named and joined.state.is_sharded:
            raise LeftOutError("files that are named after ranks have no place for that of the distributed optimizer")
        tied = {kind: replace(each, is_tied=model.is_tied) for kind, each in joined.models.items()}
        if not is_named:
            in_order(filter(is_parameter, model.tensors))  # refuses what has no known place
        return cls(
            joined=joined,
            layouts={
                kind: NewLayout.of(each, source_tp=source_tp, tp=weights.tp, numbers=weights.numbers)
                for kind, each in tied.items()
            },
            weights=weights,
            groups=_groups(joined.state.groups, model.tensors, ep),
            ep=ep,
            is_tied=model.is_tied,
            is_named=is_named,
            args=args,
        )

    def entry(self, t: int, p: int, e: int) -> dict[str, Any]:
        """Return the entries next to the weights in one rank's file."""
        if self.joined.state.is_sharded:
            return {OPTIMIZER: _chained([self._settings(each) for each in self.groups]), **self.joined.state.beside}
        states = self._states(t, p, e)
        names = self._names(t, p, e)
        held = by_optimizer(names, len(self.groups))
        plain = [self._numbered(groups, each, states) for groups, each in zip(self.groups, held, strict=True)]
        return {OPTIMIZER: _chained(plain), **self.joined.state.beside}

    def file(self, t: int, p: int) -> dict[str, Any]:
        """Return what stands in one rank's own file: a state_dict, with a scheduler next to it where there is one."""
        entry = self.entry(t, p, 0)
        return entry if self.joined.state.beside else dict(entry[OPTIMIZER])

    def buffers(self, t: int, p: int, e: int) -> Any:
        """Return what stands in one rank's file of flat buffers; the first expert rank holds what is no expert."""
        states, weights = self._states(t, p, e), self._weights(t, p, e)
        found = []
        for number, names in enumerate(by_optimizer(self._names(t, p, e), len(self.groups))):
            is_here = number > 0 or e == 0
            found.append(self._buffers(names, weights, states, p) if is_here else None)
        return found if len(found) > 1 else found[0]

    def dist_tensors(self, args: Mapping[str, Any]) -> list[JoinedTensor]:
        """Return the tensors of torch_dist."""
        tensors = []
        for kind, model in self.joined.models.items():
            named = "fp32_param" if kind == MASTER and not self.joined.state.is_sharded else kind
            for each in stacked(model.tensors, args):
                tensors.append(replace(each, name=f"{OPTIMIZER}.{STATE}.{named}.{each.name}"))
        return tensors

    def dist_entry(self) -> dict[str, Any]:
        """Return what stands in the common file of torch_dist."""
        is_sharded = self.joined.state.is_sharded
        chained: list[dict[str, Any]] = []
        for groups in self.groups:
            settings = self._settings(groups)
            if is_sharded:
                settings[SHARDING_TYPE] = RESHARDABLE
            else:
                inner = settings[OPTIMIZER]
                inner[STATE] = {} if groups.step is None else {"common_step": groups.step_tensor}
                settings = settings if MASTER in self.layouts else inner
            chained.append(settings)
        found = dict(enumerate(chained)) if len(chained) > 1 else chained[0]
        metadata = {**METADATA, **({"distrib_optim_sharding_type": RESHARDABLE} if is_sharded else {})}
        return {OPTIMIZER: found, "content_metadata": metadata, **self.joined.state.beside}

    def _weights(self, t: int, p: int, e: int) -> dict[str, JoinedTensor]:
        return {each.name: each for each in of_expert_rank(self.weights.shard(t, p), e, self.ep)}

    def _names(self, t: int, p: int, e: int) -> list[str]:
        names = filter(is_parameter, self._weights(t, p, e))
        return list(names) if self.is_named else in_order(names)

    def _states(self, t: int, p: int, e: int) -> dict[str, dict[str, JoinedTensor]]:
        shards = {kind: of_expert_rank(layout.shard(t, p), e, self.ep) for kind, layout in self.layouts.items()}
        return {kind: {each.name: each for each in shard} for kind, shard in shards.items()}

    def _settings(self, groups: Groups) -> dict[str, Any]:
        scaler = {} if groups.scaler is None else {SCALER: dict(groups.scaler)}
        return {OPTIMIZER: {PARAM_GROUPS: [dict(group) for group in groups.param_groups]}, **scaler}

    def _numbered(self, groups: Groups, names: list[str], states: Mapping[str, Tensors]) -> dict[str, Any]:
        """Return the state_dict of torch for some parameters, which are numbered group by group."""
        settings, state, masters = self._settings(groups), dict[int, dict[str, Any]](), []
        is_only = len(groups.param_groups) == 1
        axes = {name: len(states["exp_avg"][name].shape) for name in names}
        for group in settings[OPTIMIZER][PARAM_GROUPS]:
            here = [name for name in names if is_member(group, name, axes[name], is_only=is_only)]
            group["params"] = list(range(len(state), len(state) + len(here)))
            for number, name in zip(group["params"], here, strict=True):
                step = {} if groups.step is None else {STEP: groups.step_tensor}
                state[number] = {**step, **{kind: each[name] for kind, each in states.items() if kind != MASTER}}
            masters.append([states[MASTER][name] for name in here] if MASTER in states else [])
        settings[OPTIMIZER][STATE] = state
        return {**settings, MASTERS[0]: masters} if MASTER in states else dict(settings[OPTIMIZER])

    def _buffers(self, names: list[str], weights: Tensors, states: Mapping[str, Tensors], p: int) -> dict[Any, Any]:
        buffers: dict[Any, Any] = {"buckets_coalesced": True}
        # Megatron cuts the buffers of the first stage only.
        bucket_numel = self.joined.state.bucket_numel if p == 0 else None
        is_shared = self.is_tied and self.weights.pp > 1
        for number, (dtype, held) in enumerate(by_dtype(names, weights).items()):
            buckets = in_buckets(sizes_of(held, weights), bucket_numel, is_shared=is_shared)
            flat: dict[str, Any] = {kind: laid_flat(kind, buckets, each) for kind, each in states.items()}
            flat["numel_unpadded"] = sum(bucket.numel for bucket in buckets)
            in_full = self.args.get("accumulate_allreduce_grads_in_fp32", True)
            types = (dtype, torch.float32 if in_full else dtype)
            buffers[number] = {types: flat}
        return buffers


def _chained(optimizers: list[dict[str, Any]]) -> Any:
    return optimizers if len(optimizers) > 1 else optimizers[0]


def _groups(groups: tuple[Groups, ...], tensors: Tensors, ep: int) -> tuple[Groups, ...]:
    """Return the groups of the new layout: experts have an optimizer of their own where they are spread over ranks."""
    experts = [each for name, each in tensors.items() if is_expert(name) and is_parameter(name)]
    num_optimizers = 2 if ep > 1 and experts else 1
    if len(groups) >= num_optimizers:
        return groups[:num_optimizers]
    (dense,) = groups
    kinds = {has_decay(each.name, len(each.shape)) for each in experts}
    settings = tuple({**each, "is_expert_parallel": True} for each in dense.param_groups if decays(each) in kinds)
    return dense, replace(dense, param_groups=settings)
