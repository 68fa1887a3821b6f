"""Takes a checkpoint from the layout of its shards to one file, or to the shards of another layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from zenith_tune.checkpoint.bin_file import import_torch, write_bin
from zenith_tune.checkpoint.joined_model import JoinedModel, join_shards, with_vocab
from zenith_tune.checkpoint.model_shape import VOCAB_DIVISOR, ModelShape, Vocabulary
from zenith_tune.checkpoint.new_layout import NewLayout
from zenith_tune.checkpoint.output_place import (
    Written,
    beside,
    explained,
    publish,
    refuse_file,
    refuse_folder,
    refuse_full_disk,
    shard_name,
)
from zenith_tune.checkpoint.safetensors_shards import write_safetensors
from zenith_tune.checkpoint.shard_set import ShardSet, read_shards
from zenith_tune.checkpoint.split_rules import Numbering, Split, spread
from zenith_tune.checkpoint.tensor_view import JoinedTensor
from zenith_tune.errors import UsageError

EXTENSIONS = (".safetensors", ".bin")
MAX_SHARDS = 4096


def merge(
    folder: Path,
    output: Path,
    shape: ModelShape | None = None,
    *,
    vocab_divisor: int = VOCAB_DIVISOR,
    force: bool = False,
) -> Written:
    """Join the shards of a folder into one file, under the same names with the layers numbered through."""
    if output.suffix not in EXTENSIONS:
        raise UsageError(
            f"--output must end in {' or '.join(EXTENSIONS)}, but is {str(output)!r}", hint="name its kind"
        )
    refuse_file(output, folder, force=force)
    if output.suffix == ".bin":
        import_torch(f"--output {output.name} is a .bin file")
    shape = shape or ModelShape()
    shards = read_shards(folder)
    model = join_shards(shards, shape)
    notes = [] if model.embedding is None else [f"output layer: {'tied to the embedding' if model.is_tied else 'own'}"]
    if (vocabulary := _vocabulary(model, shards, shape, vocab_divisor)) is not None:
        rows, said = vocabulary.merged()
        model, notes = with_vocab(model, rows), [said, *notes]
    # One file is a plain state_dict, whatever its shards were nested in.
    model = replace(model, wrapper=None, plain={})
    flat = [replace(tensor, key_parts=(tensor.name.count(".") + 1,)) for tensor in model.tensors.values()]
    num_bytes = _write(output, {"": flat}, output.suffix[1:], model)
    return Written(
        source=f"TP {shards.tp} PP {shards.pp}",
        target="one file",
        paths=(output,),
        num_tensors=len(flat),
        num_layers=model.numbers.num_layers,
        num_bytes=num_bytes,
        notes=(*notes, *model.notes),
    )


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
            problem = f"--tp and --pp must be from 1, and at most {MAX_SHARDS} shards"
            raise UsageError(f"{problem}, but got {self.tp} x {self.pp}", hint="choose others")


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
    notes = _notes(model, target)
    if (vocabulary := _vocabulary(model, shards, shape, target.vocab_divisor)) is not None:
        rows, said = vocabulary.resharded(target.tp)
        model, notes = with_vocab(model, rows), [said, *notes]
    layout = NewLayout.of(model, source_tp=shards.tp, tp=target.tp, numbers=numbers)
    all_ranks = product(range(target.tp), range(target.pp))
    contents = {shard_name(*ranks, extension): layout.shard(*ranks) for ranks in all_ranks}
    num_bytes = _write(output, contents, extension, model)
    return Written(
        source=f"TP {shards.tp} PP {shards.pp}",
        target=f"TP {target.tp} PP {target.pp}",
        paths=tuple(output / name for name in contents),
        num_tensors=len(layout.tensors),
        num_layers=model.numbers.num_layers,
        num_bytes=num_bytes,
        notes=(*notes, *model.notes),
    )


def _vocabulary(model: JoinedModel, shards: ShardSet, shape: ModelShape, divisor: int) -> Vocabulary | None:
    if model.padded_vocab is None:
        return None
    return Vocabulary(padded=model.padded_vocab, tp=shards.tp, entries=shape.vocab, divisor=divisor)


def _notes(model: JoinedModel, target: Target) -> list[str]:
    notes = []
    if model.is_tied and target.pp > 1:
        notes.append("output layer: tied, the last stage holds a copy of the embedding")
    has_qkv = any(tensor.split is Split.QKV for tensor in model.tensors.values())
    if has_qkv and not model.attention and target.tp > 1:
        notes.append("query groups: not known, so that TP is not held against them; --model or --kv-heads tells them")
    if any(attention.kv_heads < target.tp for attention in model.attention):
        notes.append("query groups: fewer than tensor ranks, which Megatron Core reads from 0.16 on")
    return notes


def _write(output: Path, contents: Mapping[str, list[JoinedTensor]], extension: str, model: JoinedModel) -> int:
    """Write files into a folder, or the only one (named "") as the output itself; return their bytes."""
    sizes = [sum(tensor.num_bytes for tensor in tensors) for tensors in contents.values()]
    refuse_full_disk(output, sum(sizes) + (max(sizes) if extension == "bin" else 0))
    with explained(output), beside(output) as temporary:
        if "" not in contents:
            temporary.mkdir()
        for name, tensors in contents.items():
            if extension == "bin":
                write_bin(temporary / name, tensors, model.wrapper, model.plain)
            else:
                write_safetensors(temporary / name, tensors, model.metadata)
        publish(temporary, output)
    return sum(sizes)
