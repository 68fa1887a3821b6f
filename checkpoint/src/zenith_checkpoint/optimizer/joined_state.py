"""An optimizer's state joined from all ranks: each kind of tensor is a model of the weights' names and shapes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from zenith_checkpoint.joined_model import JoinedModel, join_shards, with_vocab
from zenith_checkpoint.lazy_tensor import as_bytes
from zenith_checkpoint.model_shape import ModelShape
from zenith_checkpoint.optimizer.rank_files import read_named_states, read_rank_states
from zenith_checkpoint.optimizer.state import MASTER, MOMENTS, LeftOutError, OptimizerState, is_parameter
from zenith_checkpoint.output_place import optimizer_name
from zenith_checkpoint.reading.rank_folders import has_rank_folders
from zenith_checkpoint.reading.shard_set import TORCH_DIST, Contents, ShardSet
from zenith_checkpoint.split_rules import HEAD, TIED_HEAD, Split, split_of
from zenith_checkpoint.tensors import JoinedTensor, ShardContent, StoredTensor
from zenith_tune.errors import UsageError

COMPARED_BYTES = 65536
"""What is held against the weights of each master weight: its first rows."""
_ROUNDED = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedOptimizer:
    """The optimizer's state of a whole model."""

    models: dict[str, JoinedModel]
    """The master weights, where there are some, and the two moments, by kind."""
    state: OptimizerState

    def with_vocab(self, num_rows: int) -> JoinedOptimizer:
        """Return it for a vocabulary of so many rows."""
        return replace(self, models={kind: with_vocab(model, num_rows) for kind, model in self.models.items()})


def read_optimizer(shards: ShardSet, model: JoinedModel, shape: ModelShape) -> JoinedOptimizer:
    """Return the optimizer's state of a model's checkpoint."""
    if shards.source == TORCH_DIST:
        from zenith_checkpoint.optimizer.dist_tensors import read_dist_state  # loads torch.distributed.checkpoint

        state = read_dist_state(shards, model)
    elif (shards.folder / optimizer_name(0, 0)).is_file():
        state = read_named_states(shards)
    elif has_rank_folders(shards.folder):
        state = read_rank_states(shards.folder)
    else:
        raise LeftOutError("only Megatron's own formats and optimizer_tp_T_pp_P.bin can be taken to another layout")
    if set(state.kinds) not in ({*MOMENTS}, {MASTER, *MOMENTS}):
        raise LeftOutError(f"it keeps {', '.join(state.kinds)}, not what Adam does")
    stated = replace(shape, tied=model.is_tied if model.embedding is not None else None, any_model=True)
    models = {}
    for kind in state.kinds:
        contents = _contents(state, kind, is_tied=model.is_tied)
        ranks = replace(shards, tp=state.tp, pp=state.num_stages, contents=contents)
        models[kind] = join_shards(ranks, stated)
        _refuse_other_shapes(kind, models[kind], model)
    if MASTER in models:
        _refuse_other_weights(models[MASTER], model)
    return JoinedOptimizer(models=models, state=state)


def _contents(state: OptimizerState, kind: str, *, is_tied: bool) -> Contents:
    """Return one kind of tensors by rank; of copies, whose last bits may differ, those of the first rank."""
    contents = {}
    for (t, stage), states in state.states.items():
        first, tensors = state.states[0, stage].get(kind, {}), dict[str, StoredTensor]()
        for name, tensor in states.get(kind, {}).items():
            if is_tied and name.endswith((HEAD, TIED_HEAD)):
                continue
            is_copy = split_of(name) is Split.WHOLE and name in first
            tensors[name] = first[name] if is_copy else tensor
        contents[t, stage] = ShardContent(name=f"{kind} of tensor rank {t}, stage {stage}", tensors=tensors)
    return contents


def _refuse_other_shapes(kind: str, states: JoinedModel, model: JoinedModel) -> None:
    """Leave out a state that some weights do not have, or not in their shape."""
    weights = {name: each.shape for name, each in model.tensors.items() if is_parameter(name)}
    found = {name: each.shape for name, each in states.tensors.items()}
    other = next((name for name in {**weights, **found} if weights.get(name) != found.get(name)), None)
    if other is not None:
        raise LeftOutError(f"its {kind} does not fit {other!r}")


def _refuse_other_weights(masters: JoinedModel, model: JoinedModel) -> None:
    """Refuse master weights that do not round to the weights: then each lies elsewhere than was thought."""
    for name, master in masters.tensors.items():
        weight = model.tensors[name]
        if weight.dtype in _ROUNDED and master.dtype is torch.float32 and not _rounds_to(master, weight):
            problem = f"the optimizer's copy of {name!r} does not round to the weight"
            hint = "the files are of different checkpoints, or leave --with-optimizer out"
            raise UsageError(problem, hint=hint)


def _rounds_to(master: JoinedTensor, weight: JoinedTensor) -> bool:
    num_rows = min(max(COMPARED_BYTES * master.shape[0] // max(master.num_bytes, 1), 1), master.shape[0])
    wide, found = (each.data.part(0, 0, num_rows).read() for each in (master, weight))
    return bool(torch.equal(as_bytes(wide.to(weight.dtype)), as_bytes(found)))
