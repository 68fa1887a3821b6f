"""A model cut for the ranks of another layout: what each tensor rank and stage holds, under the names that it knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from zenith_checkpoint.joined_model import JoinedModel, with_tied_head
from zenith_checkpoint.split_rules import (
    Home,
    LayerNumbers,
    Split,
    is_known,
    is_state_space,
    layer_of,
    renumbered,
)
from zenith_checkpoint.tensors import JoinedTensor, describe
from zenith_tune.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLayout:
    """The weights of a model and the degrees that they are cut for."""

    tensors: Mapping[str, JoinedTensor]
    numbers: LayerNumbers
    tp: int
    embedding_is_last_too: bool
    on_every_stage: frozenset[str]

    @classmethod
    def of(cls, model: JoinedModel, *, source_tp: int, tp: int, numbers: LayerNumbers) -> NewLayout:
        """Cut a model; refuse degrees that Megatron could not split it by."""
        if tp > 1:
            _refuse_unknown(model.tensors.values(), source_tp, tp)
        for attention in model.attention:
            if (reason := attention.why_not(tp)) is not None:
                raise UsageError(f"{reason}, which Megatron refuses", hint="choose another --tp")
        tensors = with_tied_head(model) if len(numbers.per_stage) > 1 else model.tensors
        layout = cls(
            tensors=tensors,
            numbers=numbers,
            tp=tp,
            embedding_is_last_too=model.has_mtp,
            on_every_stage=model.on_every_stage,
        )
        for tensor in tensors.values():
            layout.stages(tensor)
            tensor.part(0, tp)
        return layout

    @property
    def pp(self) -> int:
        """Pipeline stages."""
        return len(self.numbers.per_stage)

    def shard(self, rank: int, stage: int) -> list[JoinedTensor]:
        """Return what one rank holds, under the names that it knows."""
        here = [tensor for tensor in self.tensors.values() if stage in self.stages(tensor)]
        return [replace(tensor.part(rank, self.tp), name=self._local_name(tensor.name)) for tensor in here]

    def stages(self, tensor: JoinedTensor) -> set[int]:
        """Return the stages that hold a weight."""
        place = layer_of(tensor.name)
        if place is not None:
            return {self.numbers.place(place[1])[0]}
        if tensor.home is Home.LAST:
            return {self.pp - 1}
        if tensor.home is Home.FIRST:
            return {0, self.pp - 1} if self.embedding_is_last_too else {0}
        if self.pp > 1 and tensor.name not in self.on_every_stage:
            problem = f"{tensor.name!r} has no known place in a pipeline of {self.pp} stages"
            raise UsageError(problem, hint="choose --pp 1, or leave it out of the checkpoint")
        return set(range(self.pp))

    def _local_name(self, name: str) -> str:
        place = layer_of(name)
        return renumbered(name, self.numbers.place(place[1])[1]) if place else name


def _refuse_unknown(tensors: Iterable[JoinedTensor], source_tp: int, tp: int) -> None:
    """Refuse to write whole copies of a matrix that may well have to be split.

    One that several ranks held, each the same, is whole.
    """
    for tensor in tensors:
        if tensor.split is not Split.WHOLE or is_known(tensor.name, len(tensor.shape)):
            continue
        shown = f"{tensor.name!r}, {describe(tensor)}"
        if is_state_space(tensor.name):
            problem = f"{shown}, is of a Mamba layer, whose split over tensor ranks is not supported"
            raise UsageError(problem, hint=f"choose --tp 1, or load and save it with Megatron-LM at TP {tp}")
        if source_tp == 1:
            problem = f"no rule of Megatron's says how {shown}, is split over {tp} tensor ranks"
            hint = "choose --tp 1, or give the folder of a model of transformers, whose names are known"
            raise UsageError(problem, hint=hint)
