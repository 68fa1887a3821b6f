"""Writes the weights of a checkpoint for another layout."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path

from zenith_tune.checkpoint.joined_model import JoinedModel, join_shards
from zenith_tune.checkpoint.joined_tensor import JoinedTensor
from zenith_tune.checkpoint.layer_numbers import Numbering, spread
from zenith_tune.checkpoint.model_shape import VOCAB_DIVISOR, ModelShape
from zenith_tune.checkpoint.needs_torch import import_torch
from zenith_tune.checkpoint.new_layout import NewLayout
from zenith_tune.checkpoint.output_place import beside, explained, publish, refuse_folder, refuse_full_disk
from zenith_tune.checkpoint.shard_set import ShardSet, read_shards, shard_name
from zenith_tune.checkpoint.split_rules import Split
from zenith_tune.checkpoint.vocabulary import Vocabulary
from zenith_tune.checkpoint.written import Written
from zenith_tune.errors import UsageError

MAX_SHARDS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Hold the layout that shards are written for."""

    tp: int
    pp: int
    layers_per_stage: tuple[int, ...] | None = None
    numbering: Numbering | None = None
    extension: str | None = None
    vocab_divisor: int = VOCAB_DIVISOR

    def __post_init__(self) -> None:
        if not (self.tp > 0 and self.pp > 0 and self.tp * self.pp <= MAX_SHARDS):
            law = f"--tp and --pp must be from 1, and at most {MAX_SHARDS} shards"
            raise UsageError(f"{law}, but got {self.tp} x {self.pp}: choose others")


def reshard(
    folder: Path, output: Path, target: Target, shape: ModelShape | None = None, *, force: bool = False
) -> Written:
    """Write the shards of a folder anew for another layout, into a folder of their own."""
    refuse_folder(output, folder, force=force)
    shape = shape or ModelShape()
    shards = read_shards(folder)
    extension = target.extension or shards.extension
    if extension == "bin":
        import_torch("these are .bin shards")
    model = join_shards(shards, shape)
    numbering = target.numbering or (model.numbers.numbering if shards.pp > 1 else Numbering.LOCAL)
    numbers = spread(model.numbers.num_layers, target.pp, target.layers_per_stage, numbering)
    rows, notes = _rows(model, shards, target, shape.vocab)
    layout = NewLayout.of(model, source_tp=shards.tp, tp=target.tp, numbers=numbers, vocab_rows=rows)
    contents = {ranks: layout.shard(*ranks) for ranks in product(range(target.tp), range(target.pp))}
    sizes = [sum(tensor.num_bytes for tensor in tensors) for tensors in contents.values()]
    refuse_full_disk(output, sum(sizes) + (max(sizes) if extension == "bin" else 0))
    with explained(output), beside(output) as temporary:
        temporary.mkdir()
        for ranks, tensors in contents.items():
            _write(temporary / shard_name(*ranks, extension), extension, tensors, model)
        publish(temporary, output)
    return Written(
        source=f"TP {shards.tp} PP {shards.pp}",
        target=f"TP {target.tp} PP {target.pp}",
        paths=tuple(output / shard_name(*ranks, extension) for ranks in contents),
        num_tensors=len(layout.tensors),
        num_layers=model.numbers.num_layers,
        num_bytes=sum(sizes),
        notes=(*notes, *_said(model, target), *model.notes),
    )


def _rows(model: JoinedModel, shards: ShardSet, target: Target, vocab: int | None) -> tuple[int | None, list[str]]:
    if model.padded_vocab is None:
        return None, []
    divisor = target.vocab_divisor
    vocabulary = Vocabulary(padded=model.padded_vocab, tp=shards.tp, entries=vocab, divisor=divisor)
    rows, said = vocabulary.resharded(target.tp)
    return rows, [said]


def _said(model: JoinedModel, target: Target) -> list[str]:
    said = []
    if model.is_tied and target.pp > 1:
        said.append("output layer: tied, the last stage holds a copy of the embedding")
    has_qkv = any(tensor.split is Split.QKV for tensor in model.tensors.values())
    if has_qkv and not model.attention and target.tp > 1:
        said.append("query groups: not known, so that TP is not held against them; --model or --kv-heads tells them")
    if any(attention.kv_heads < target.tp for attention in model.attention):
        said.append("query groups: fewer than tensor ranks, which Megatron Core reads from 0.16 on")
    return said


def _write(path: Path, extension: str, tensors: list[JoinedTensor], model: JoinedModel) -> None:
    if extension == "bin":
        from zenith_tune.checkpoint.bin_file import write_bin

        write_bin(path, tensors, model.wrapper, model.plain)
    else:
        from zenith_tune.checkpoint.safetensors_file import write_safetensors

        write_safetensors(path, tensors, model.metadata)
