"""Joins the shards of all ranks into one file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from zenith_tune.checkpoint.bin_file import import_torch
from zenith_tune.checkpoint.joined_model import JoinedModel, join_shards, with_vocab
from zenith_tune.checkpoint.model_shape import VOCAB_DIVISOR, ModelShape, Vocabulary
from zenith_tune.checkpoint.output_place import Written, beside, explained, publish, refuse_file, refuse_full_disk
from zenith_tune.checkpoint.shard_set import read_shards
from zenith_tune.checkpoint.tensor_view import JoinedTensor
from zenith_tune.errors import UsageError

EXTENSIONS = (".safetensors", ".bin")


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
    tensors, notes = _cut(model, shards.tp, shape.vocab, vocab_divisor)
    num_bytes = sum(tensor.num_bytes for tensor in tensors)
    refuse_full_disk(output, num_bytes * (2 if output.suffix == ".bin" else 1))
    with explained(output), beside(output) as temporary:
        _write(temporary, output.suffix, tensors, model)
        publish(temporary, output)
    layout = f"TP {shards.tp} PP {shards.pp}"
    return Written(
        source=layout,
        target="one file",
        paths=(output,),
        num_tensors=len(tensors),
        num_layers=model.numbers.num_layers,
        num_bytes=num_bytes,
        notes=(*notes, *model.notes),
    )


def _cut(model: JoinedModel, tp: int, vocab: int | None, divisor: int) -> tuple[list[JoinedTensor], list[str]]:
    notes = [] if model.embedding is None else [f"output layer: {'tied to the embedding' if model.is_tied else 'own'}"]
    if model.padded_vocab is None:
        return list(model.tensors.values()), notes
    rows, said = Vocabulary(padded=model.padded_vocab, tp=tp, entries=vocab, divisor=divisor).merged()
    return list(with_vocab(model, rows).values()), [said, *notes]


def _write(path: Path, extension: str, tensors: list[JoinedTensor], model: JoinedModel) -> None:
    if extension == ".safetensors":
        from zenith_tune.checkpoint.safetensors_shards import write_safetensors

        write_safetensors(path, tensors, model.metadata)
        return
    from zenith_tune.checkpoint.bin_file import write_bin

    flat = [replace(tensor, key_parts=(tensor.name.count(".") + 1,)) for tensor in tensors]
    write_bin(path, flat, None, {})
