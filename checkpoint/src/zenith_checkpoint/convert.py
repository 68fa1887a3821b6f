"""Takes a checkpoint from the layout of its shards to one file, or to the shards of another layout."""

from __future__ import annotations

import argparse
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from zenith_checkpoint.bin_file import leaves, write_bin, write_dist
from zenith_checkpoint.hf_names import KNOWN, heads_of, is_hf, to_hf, to_megatron
from zenith_checkpoint.joined_model import (
    JoinedModel,
    join_shards,
    left_out_notes,
    with_vocab,
    without_optimizer,
)
from zenith_checkpoint.megatron_names import iteration_name, of_expert_rank, rank_name, stacked
from zenith_checkpoint.model_shape import VOCAB_DIVISOR, ModelShape, Vocabulary, count_of
from zenith_checkpoint.new_layout import NewLayout
from zenith_checkpoint.optimizer.joined_state import read_optimizer
from zenith_checkpoint.optimizer.state import LeftOutError
from zenith_checkpoint.optimizer.written_state import WrittenOptimizer
from zenith_checkpoint.output_place import (
    Format,
    Written,
    beside,
    explained,
    optimizer_name,
    publish,
    refuse_file,
    refuse_folder,
    refuse_full_disk,
    shard_name,
)
from zenith_checkpoint.reading.checkpoint import CONFIG, in_files, read_checkpoint
from zenith_checkpoint.reading.rank_folders import SHARDED_OPTIMIZER, TRACKER
from zenith_checkpoint.reading.shard_set import ShardSet
from zenith_checkpoint.reading.state_dict import ARGS
from zenith_checkpoint.safetensors_file import write_safetensors
from zenith_checkpoint.split_rules import Numbering, Split, layer_of, spread
from zenith_checkpoint.tensors import JoinedTensor
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.errors import UsageError

EXTENSIONS = (".safetensors", ".bin")
MAX_SHARDS = 4096
MEGATRON_LOADS = (Format.MEGATRON, Format.TORCH_DIST)


class Names(enum.Enum):
    """Whose names the weights of one file have."""

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
    shards, shape = _read(folder, shape)
    if names is not None:
        shards, shape = _with_megatron_names(shards, shape, sequential=False)
    model = join_shards(shards, shape)
    if names is not None and not _has_known_layers(model):
        raise _no_layers(folder)
    notes = [] if model.embedding is None else [f"output layer: {'tied to the embedding' if model.is_tied else 'own'}"]
    if (vocabulary := _vocabulary(model, shards, shape, vocab_divisor)) is not None:
        rows, said = vocabulary.merged()
        model, notes = with_vocab(model, rows), [said, *notes]
    # One file is a plain state_dict, whatever its shards were nested in.
    model = replace(model, wrapper=None, plain={})
    tensors = to_hf(model.tensors, model.attention) if names is Names.HF else model.tensors.values()
    flat = [replace(tensor, key_parts=(tensor.name.count(".") + 1,)) for tensor in tensors]
    config = config if config is not None and config.is_file() else folder / CONFIG
    contents, texts = in_files(flat, config) if is_folder else ({"": flat}, {})
    if is_folder and CONFIG not in texts:
        notes.append(f"{CONFIG}: none, which transformers needs; copy the model's own into the folder")
    files = {name: FileContent(tensors=tensors) for name, tensors in contents.items()}
    num_bytes = _write(output, files, kind, model.metadata, texts)
    return Written(
        source=shards.source,
        target="transformers" if is_folder else "one file",
        paths=tuple(output / name for name in contents) if is_folder else (output,),
        num_tensors=len(flat),
        num_layers=model.numbers.num_layers,
        num_bytes=num_bytes,
        notes=(*notes, *left_out_notes(model.left_out)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContent:
    """The content of one new file, or of one folder of torch_dist."""

    tensors: list[JoinedTensor]
    wrapper: str | None = None
    beside: Any = field(default_factory=dict)
    """Other entries, which may hold tensors too."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(tensor.num_bytes for tensor in [*self.tensors, *leaves(self.beside)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The layout that shards are written for."""

    tp: int
    pp: int
    layers_per_stage: tuple[int, ...] | None = None
    numbering: Numbering | None = None
    format: Format | None = None
    vocab_divisor: int = VOCAB_DIVISOR
    ep: int = 1
    sequential_experts: bool = False
    """Experts that have other names are named as without --moe-grouped-gemm."""
    with_optimizer: bool = False

    def __post_init__(self) -> None:
        if not (min(self.tp, self.pp, self.ep) > 0 and self.tp * self.pp * self.ep <= MAX_SHARDS):
            problem = f"--tp, --pp and --ep must be from 1, and at most {MAX_SHARDS} shards"
            raise UsageError(f"{problem}, but got {self.tp} x {self.pp} x {self.ep}", hint="choose others")

    @property
    def shown(self) -> str:
        """The degrees for a person."""
        return f"TP {self.tp} PP {self.pp}" + (f" EP {self.ep}" if self.ep > 1 else "")


def reshard(
    folder: Path, output: Path, target: Target, shape: ModelShape | None = None, *, force: bool = False
) -> Written:
    """Write the shards of a folder for another layout, into a folder of their own."""
    refuse_folder(output, folder, force=force)
    shards, shape = _with_megatron_names(*_read(folder, shape), sequential=target.sequential_experts)
    kind = target.format or shards.format
    _refuse_target(target, kind)
    model = join_shards(shards, shape)
    if kind in MEGATRON_LOADS and not model.numbers.num_layers:
        raise _no_layers(folder)
    keeps_numbers = shards.pp > 1 and kind not in MEGATRON_LOADS
    numbering = target.numbering or (model.numbers.numbering if keeps_numbers else Numbering.LOCAL)
    numbers = spread(model.numbers.num_layers, target.pp, target.layers_per_stage, numbering)
    notes = _notes(model, target)
    optimizer, written, why = None, None, ""
    try:
        optimizer = read_optimizer(shards, model, shape) if target.with_optimizer else None
    except LeftOutError as error:
        why = f" ({error})"
    if (vocabulary := _vocabulary(model, shards, shape, target.vocab_divisor)) is not None:
        rows, said = vocabulary.resharded(target.tp)
        model, notes = with_vocab(model, rows), [said, *notes]
        optimizer = optimizer and optimizer.with_vocab(rows)
    layout = NewLayout.of(model, source_tp=shards.tp, tp=target.tp, numbers=numbers)
    try:
        if optimizer:
            is_named, tp = kind is Format.BIN, shards.tp
            written = WrittenOptimizer.of(
                optimizer, model, layout, source_tp=tp, ep=target.ep, args=shards.args, is_named=is_named
            )
    except LeftOutError as error:
        why = f" ({error})"
    if kind in MEGATRON_LOADS:
        model = _for_megatron(model, shards.args, target)
        notes.append(
            "load it with --no-load-rng: it holds no random states"
            if written
            else "load it with --finetune, or --no-load-optim --no-load-rng: it holds weights only"
        )
    files = _files(layout, model, target, kind, written)
    iteration = next(iter(files)).partition("/")[0]
    tracker = {TRACKER: iteration.removeprefix("iter_").lstrip("0") or "0"}
    num_bytes = _write(output, files, kind, model.metadata, tracker if kind in MEGATRON_LOADS else {})
    left_out = without_optimizer(model.left_out) if written else model.left_out
    left_out -= {ARGS} & model.plain.keys()
    return Written(
        source=shards.source,
        target=kind.value if kind is Format.TORCH_DIST else target.shown,
        paths=tuple(output / name for name in files),
        num_tensors=len(layout.tensors),
        num_layers=model.numbers.num_layers,
        num_bytes=num_bytes,
        notes=(*notes, *_optimizer_notes(written, kind), *left_out_notes(left_out, why=why)),
        has_optimizer=written is not None,
    )


def _refuse_target(target: Target, kind: Format) -> None:
    """Refuse what the format of the new files cannot hold."""
    has_ranks = kind is Format.MEGATRON or (kind is Format.TORCH_DIST and target.with_optimizer)
    if target.ep > 1 and not has_ranks:
        problem = f"--ep {target.ep} needs files that are named after expert ranks"
        raise UsageError(problem, hint="give --format megatron; torch_dist is loaded with any --ep")
    if target.with_optimizer and kind is Format.SAFETENSORS:
        problem = f"--with-optimizer needs a format that holds more than weights, but --format is {kind.value}"
        raise UsageError(problem, hint="give --format bin, megatron or torch_dist")


def _optimizer_notes(written: WrittenOptimizer | None, kind: Format) -> tuple[str, ...]:
    if written is None:
        return ()
    is_sharded = written.joined.state.is_sharded
    name = "that of the distributed optimizer" if is_sharded else "that of the optimizer of each rank"
    since = ", which Megatron Core reads from 0.15 on" if is_sharded and kind is Format.TORCH_DIST else ""
    return (f"optimizer state: {name}{since}",)


def _for_megatron(model: JoinedModel, args: Mapping[str, Any], target: Target) -> JoinedModel:
    """Return a model with the entries that Megatron-LM looks for."""
    degrees = {
        "tensor_model_parallel_size": target.tp,
        "pipeline_model_parallel_size": target.pp,
        "expert_model_parallel_size": target.ep,
        "virtual_pipeline_model_parallel_size": None,
    }
    plain = {"checkpoint_version": 3.0, "iteration": 0, **model.plain}
    if args:
        plain[ARGS] = argparse.Namespace(**{**args, **degrees})
    return replace(model, wrapper="model", plain=plain)


def _files(
    layout: NewLayout, model: JoinedModel, target: Target, kind: Format, optimizer: WrittenOptimizer | None
) -> dict[str, FileContent]:
    """Return what each file, or each folder of torch_dist, holds."""
    iteration = iteration_name(count_of(model.plain, "iteration"))
    if kind is Format.TORCH_DIST:
        return {iteration: _dist_folder(model, optimizer)}
    if kind is not Format.MEGATRON:
        all_ranks = product(range(target.tp), range(target.pp))
        held = {shard_name(*ranks, kind.value): layout.shard(*ranks) for ranks in all_ranks}
        named = {
            name: FileContent(tensors=each, wrapper=model.wrapper, beside=model.plain) for name, each in held.items()
        }
        if optimizer is None:
            return named
        ranks = product(range(target.tp), range(target.pp))
        return named | {optimizer_name(*each): FileContent(tensors=[], beside=optimizer.file(*each)) for each in ranks}
    degrees = target.tp, target.pp, target.ep
    files = {}
    for t, p in product(range(target.tp), range(target.pp)):
        shard = layout.shard(t, p)
        for e in range(target.ep):
            place = f"{iteration}/{rank_name((t, p, e), degrees)}"
            beside = {**model.plain, **(optimizer.entry(t, p, e) if optimizer else {})}
            tensors = of_expert_rank(shard, e, target.ep)
            files[f"{place}/model_optim_rng.pt"] = FileContent(tensors=tensors, wrapper=model.wrapper, beside=beside)
            if optimizer and optimizer.joined.state.is_sharded:
                files[f"{place}/{SHARDED_OPTIMIZER}"] = FileContent(tensors=[], beside=optimizer.buffers(t, p, e))
    return files


def _dist_folder(model: JoinedModel, optimizer: WrittenOptimizer | None) -> FileContent:
    args = vars(model.plain[ARGS]) if ARGS in model.plain else {}
    tensors = [*stacked(model.tensors, args), *(optimizer.dist_tensors(args) if optimizer else ())]
    return FileContent(tensors=tensors, beside={**model.plain, **(optimizer.dist_entry() if optimizer else {})})


def _read(folder: Path, shape: ModelShape | None) -> tuple[ShardSet, ModelShape]:
    """Return the weights of a folder, and the shape, completed by Megatron's arguments."""
    shards = read_checkpoint(folder)
    return shards, (shape or ModelShape()).with_args(shards.args, shards.tp)


def _with_megatron_names(shards: ShardSet, shape: ModelShape, *, sequential: bool) -> tuple[ShardSet, ModelShape]:
    """Return the weights under Megatron's names, where they have those of transformers; named shards keep theirs."""
    content = shards.contents[0, 0]
    if shards.format is not Format.MEGATRON or not is_hf(content.tensors):
        return shards, shape
    config = shards.folder / CONFIG
    if config.is_file():
        of_config = ModelShape.of_model(load_model(str(config)))
        stated = {each.name: value for each in fields(shape) if (value := getattr(shape, each.name)) != each.default}
        shape = replace(of_config, **stated)
    heads = heads_of(content.tensors, shape, shards.folder)
    tensors = to_megatron(content.tensors, heads, sequential=sequential)
    return replace(shards, contents={(0, 0): replace(content, tensors=tensors)}), shape


def _has_known_layers(model: JoinedModel) -> bool:
    """Tell whether layers have names of Megatron's."""
    return any(tensor.split is not Split.WHOLE and layer_of(name) for name, tensor in model.tensors.items())


def _no_layers(folder: Path) -> UsageError:
    return UsageError(f"{folder} holds no layer that has a name of Megatron's or transformers'", hint=KNOWN)


def _vocabulary(model: JoinedModel, shards: ShardSet, shape: ModelShape, divisor: int) -> Vocabulary | None:
    if model.padded_vocab is None:
        return None
    if divisor == VOCAB_DIVISOR:  # the default, so probably not given
        divisor = count_of(shards.args, "make_vocab_size_divisible_by") or divisor
    return Vocabulary(padded=model.padded_vocab, tp=shards.padded_for, entries=shape.vocab, divisor=divisor)


def _notes(model: JoinedModel, target: Target) -> list[str]:
    notes = []
    if model.is_tied and target.pp > 1:
        notes.append("output layer: tied, the last stage holds a copy of the embedding")
    has_qkv = any(tensor.split is Split.QKV for tensor in model.tensors.values())
    if has_qkv and not model.attention and target.tp > 1:
        notes.append("query groups: not known, so TP is not checked against them; give --model or --kv-heads")
    if any(attention.kv_heads < target.tp for attention in model.attention):
        notes.append("query groups: fewer than tensor ranks, which Megatron Core reads from 0.16 on")
    return notes


def _write(
    output: Path,
    files: Mapping[str, FileContent],
    kind: Format,
    metadata: dict[str, str],
    texts: Mapping[str, str],
) -> int:
    """Write files into a folder, or the only one (named "") as the output itself; return the bytes of the tensors."""
    sizes = [content.num_bytes for content in files.values()]
    refuse_full_disk(output, sum(sizes) + (0 if kind is Format.SAFETENSORS else max(sizes)))
    with explained(output), beside(output) as temporary:
        if "" not in files:
            temporary.mkdir()
        for name, content in files.items():
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind is Format.SAFETENSORS:
                write_safetensors(path, content.tensors, metadata)
            elif kind is Format.TORCH_DIST:
                write_dist(path, content.tensors, content.beside)
            else:
                write_bin(path, content.tensors, content.wrapper, content.beside)
        for name, text in texts.items():
            (temporary / name).write_text(text)
        publish(temporary, output)
    return sum(sizes)
