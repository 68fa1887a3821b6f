"""Takes a checkpoint from the layout of its shards to one file, or to the shards of another layout."""

from __future__ import annotations

import argparse
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from zenith_tune.checkpoint.bin_file import import_torch, write_bin, write_dist
from zenith_tune.checkpoint.hf_names import heads_of, is_hf, to_hf, to_megatron
from zenith_tune.checkpoint.joined_model import JoinedModel, join_shards, with_tied_head, with_vocab
from zenith_tune.checkpoint.megatron_names import iteration_name, of_expert_rank, rank_name, stacked
from zenith_tune.checkpoint.model_shape import VOCAB_DIVISOR, ModelShape, Vocabulary, count_of
from zenith_tune.checkpoint.output_place import (
    Format,
    Written,
    beside,
    explained,
    publish,
    refuse_file,
    refuse_folder,
    refuse_full_disk,
    shard_name,
)
from zenith_tune.checkpoint.reading.checkpoint import read_checkpoint
from zenith_tune.checkpoint.reading.plain_folder import in_files
from zenith_tune.checkpoint.reading.rank_folders import TRACKER
from zenith_tune.checkpoint.reading.shard_set import ShardSet
from zenith_tune.checkpoint.safetensors_shards import write_safetensors
from zenith_tune.checkpoint.split_rules import (
    Home,
    LayerNumbers,
    Numbering,
    Split,
    is_known,
    is_state_space,
    layer_of,
    renumbered,
    spread,
)
from zenith_tune.checkpoint.tensor_view import JoinedTensor, describe
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.errors import UsageError

EXTENSIONS = (".safetensors", ".bin")
MAX_SHARDS = 4096
MEGATRON_LOADS = (Format.MEGATRON, Format.TORCH_DIST)


class Names(enum.Enum):
    """Say whose names the weights of one file have."""

    HF = "hf"
    MEGATRON = "megatron"


def merge(
    folder: Path,
    output: Path,
    shape: ModelShape | None = None,
    *,
    vocab_divisor: int = VOCAB_DIVISOR,
    names: Names | None = None,
    config: Path | None = None,
    force: bool = False,
) -> Written:
    """Join the shards of a folder into one file, under the same names, or into a folder that transformers loads."""
    is_folder = names is Names.HF and not output.suffix
    if is_folder:
        refuse_folder(output, folder, force=False)
    elif output.suffix in EXTENSIONS:
        refuse_file(output, folder, force=force)
    else:
        raise UsageError(
            f"--output must end in {' or '.join(EXTENSIONS)}, but is {str(output)!r}", hint="name its kind"
        )
    kind = Format.SAFETENSORS if is_folder else Format(output.suffix[1:])
    if kind is Format.BIN:
        import_torch(f"--output {output.name} is a .bin file")
    shards, shape = _read(folder, shape)
    if names is not None:
        shards, shape = _with_megatron_names(shards, shape, sequential=False)
    model = join_shards(shards, shape)
    notes = [] if model.embedding is None else [f"output layer: {'tied to the embedding' if model.is_tied else 'own'}"]
    if (vocabulary := _vocabulary(model, shards, shape, vocab_divisor)) is not None:
        rows, said = vocabulary.merged()
        model, notes = with_vocab(model, rows), [said, *notes]
    # One file is a plain state_dict, whatever its shards were nested in.
    model = replace(model, wrapper=None, plain={})
    tensors = to_hf(model.tensors, model.attention) if names is Names.HF else model.tensors.values()
    flat = [replace(tensor, key_parts=(tensor.name.count(".") + 1,)) for tensor in tensors]
    contents, texts = in_files(flat, config or folder / "config.json") if is_folder else ({"": flat}, {})
    num_bytes = _write(output, contents, kind, model, texts)
    return Written(
        source=shards.source,
        target="transformers" if is_folder else "one file",
        paths=tuple(output / name for name in contents) if is_folder else (output,),
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
    format: Format | None = None
    vocab_divisor: int = VOCAB_DIVISOR
    ep: int = 1
    sequential_experts: bool = False
    """Experts that have other names are named as without --moe-grouped-gemm."""

    def __post_init__(self) -> None:
        if not (min(self.tp, self.pp, self.ep) > 0 and self.tp * self.pp * self.ep <= MAX_SHARDS):
            problem = f"--tp, --pp and --ep must be from 1, and at most {MAX_SHARDS} shards"
            raise UsageError(f"{problem}, but got {self.tp} x {self.pp} x {self.ep}", hint="choose others")

    @property
    def shown(self) -> str:
        """The degrees for a person."""
        return f"TP {self.tp} PP {self.pp}" + (f" EP {self.ep}" if self.ep > 1 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLayout:
    """Hold the weights and the degrees that they are cut for."""

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
        shown = f"{tensor.name!r}, {describe(tensor.dtype, tensor.shape)}"
        if is_state_space(tensor.name):
            problem = f"{shown}, is of a Mamba layer, whose split over tensor ranks is not supported"
            raise UsageError(problem, hint=f"choose --tp 1, or load and save it with Megatron-LM at TP {tp}")
        if source_tp == 1:
            problem = f"no rule of Megatron's tells how {shown}, is split over {tp} tensor ranks"
            hint = "choose --tp 1, or give the folder of a model of transformers, whose names are known"
            raise UsageError(problem, hint=hint)


def reshard(
    folder: Path, output: Path, target: Target, shape: ModelShape | None = None, *, force: bool = False
) -> Written:
    """Write the shards of a folder anew for another layout, into a folder of their own."""
    refuse_folder(output, folder, force=force)
    shards, shape = _with_megatron_names(*_read(folder, shape), sequential=target.sequential_experts)
    kind = target.format or shards.format
    if kind is not Format.SAFETENSORS:
        import_torch("this format is written by torch")
    if target.ep > 1 and kind is not Format.MEGATRON:
        problem = f"--ep {target.ep} needs files that are named after expert ranks"
        raise UsageError(problem, hint="give --format megatron; torch_dist is loaded with any --ep")
    model = join_shards(shards, shape)
    keeps_numbers = shards.pp > 1 and kind not in MEGATRON_LOADS
    numbering = target.numbering or (model.numbers.numbering if keeps_numbers else Numbering.LOCAL)
    numbers = spread(model.numbers.num_layers, target.pp, target.layers_per_stage, numbering)
    notes = _notes(model, target)
    if (vocabulary := _vocabulary(model, shards, shape, target.vocab_divisor)) is not None:
        rows, said = vocabulary.resharded(target.tp)
        model, notes = with_vocab(model, rows), [said, *notes]
    layout = NewLayout.of(model, source_tp=shards.tp, tp=target.tp, numbers=numbers)
    if kind in MEGATRON_LOADS:
        model = _for_megatron(model, shards.args, target)
        notes.append("load it with --finetune, or --no-load-optim --no-load-rng: it holds weights only")
    contents = _contents(layout, model, target, kind)
    iteration = next(iter(contents)).partition("/")[0]
    tracker = {TRACKER: iteration.removeprefix("iter_").lstrip("0") or "0"}
    num_bytes = _write(output, contents, kind, model, tracker if kind in MEGATRON_LOADS else {})
    return Written(
        source=shards.source,
        target=kind.value if kind is Format.TORCH_DIST else target.shown,
        paths=tuple(output / name for name in contents),
        num_tensors=len(layout.tensors),
        num_layers=model.numbers.num_layers,
        num_bytes=num_bytes,
        notes=(*notes, *model.notes),
    )


def _for_megatron(model: JoinedModel, args: Mapping[str, Any], target: Target) -> JoinedModel:
    """Return a model with what Megatron-LM looks for beside the weights."""
    degrees = {
        "tensor_model_parallel_size": target.tp,
        "pipeline_model_parallel_size": target.pp,
        "expert_model_parallel_size": target.ep,
        "virtual_pipeline_model_parallel_size": None,
    }
    plain = {"checkpoint_version": 3.0, "iteration": 0, **model.plain}
    if args:
        plain["args"] = argparse.Namespace(**{**args, **degrees})
    return replace(model, wrapper="model", plain=plain)


def _contents(layout: NewLayout, model: JoinedModel, target: Target, kind: Format) -> dict[str, list[JoinedTensor]]:
    """Return what each file, or each folder of torch_dist, holds."""
    iteration = iteration_name(count_of(model.plain, "iteration"))
    if kind is Format.TORCH_DIST:
        args = model.plain.get("args")
        return {iteration: stacked(model.tensors, vars(args) if args else {})}
    if kind is not Format.MEGATRON:
        all_ranks = product(range(target.tp), range(target.pp))
        return {shard_name(*ranks, kind.value): layout.shard(*ranks) for ranks in all_ranks}
    degrees = target.tp, target.pp, target.ep
    contents = {}
    for t, p in product(range(target.tp), range(target.pp)):
        shard = layout.shard(t, p)
        for e in range(target.ep):
            name = f"{iteration}/{rank_name((t, p, e), degrees)}/model_optim_rng.pt"
            contents[name] = of_expert_rank(shard, e, target.ep)
    return contents


def _read(folder: Path, shape: ModelShape | None) -> tuple[ShardSet, ModelShape]:
    """Return the weights of a folder, and the shape with what stands beside them."""
    shards = read_checkpoint(folder)
    return shards, (shape or ModelShape()).with_args(shards.args, shards.tp)


def _with_megatron_names(shards: ShardSet, shape: ModelShape, *, sequential: bool) -> tuple[ShardSet, ModelShape]:
    """Return the weights under Megatron's names, where they have those of transformers; named shards keep theirs."""
    content = shards.contents[0, 0]
    if shards.format is not Format.MEGATRON or not is_hf(content.tensors):
        return shards, shape
    config = shards.folder / "config.json"
    if config.is_file():
        of_config = ModelShape.of_model(load_model(str(config)))
        stated = {each.name: value for each in fields(shape) if (value := getattr(shape, each.name)) != each.default}
        shape = replace(of_config, **stated)
    heads = heads_of(content.tensors, shape.head_dim, shards.folder)
    tensors = to_megatron(content.tensors, heads, sequential=sequential)
    return replace(shards, contents={(0, 0): replace(content, tensors=tensors)}), shape


def _vocabulary(model: JoinedModel, shards: ShardSet, shape: ModelShape, divisor: int) -> Vocabulary | None:
    if model.padded_vocab is None:
        return None
    if divisor == VOCAB_DIVISOR:  # what nobody stated
        divisor = count_of(shards.args, "make_vocab_size_divisible_by") or divisor
    return Vocabulary(padded=model.padded_vocab, tp=shards.padded_for, entries=shape.vocab, divisor=divisor)


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


def _write(
    output: Path,
    contents: Mapping[str, list[JoinedTensor]],
    kind: Format,
    model: JoinedModel,
    texts: Mapping[str, str],
) -> int:
    """Write files into a folder, or the only one (named "") as the output itself; return the bytes of the weights."""
    sizes = [sum(tensor.num_bytes for tensor in tensors) for tensors in contents.values()]
    refuse_full_disk(output, sum(sizes) + (0 if kind is Format.SAFETENSORS else max(sizes)))
    with explained(output), beside(output) as temporary:
        if "" not in contents:
            temporary.mkdir()
        for name, tensors in contents.items():
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind is Format.SAFETENSORS:
                write_safetensors(path, tensors, model.metadata)
            elif kind is Format.TORCH_DIST:
                write_dist(path, tensors, model.plain)
            else:
                write_bin(path, tensors, model.wrapper, model.plain)
        for name, text in texts.items():
            (temporary / name).write_text(text)
        publish(temporary, output)
    return sum(sizes)
