"""Reads folders of torch.distributed.checkpoint (.metadata and *.distcp), which Megatron calls torch_dist.

A tensor lies in chunks, each a file of torch.save inside a .distcp file. Megatron puts the layers of a model, and the
experts of a layer, along leading axes of one tensor; here each is a weight of its own, under its name in a state_dict.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zenith_checkpoint.file_slice import FileSlice
from zenith_checkpoint.reading.safe_pickle import Described, HoldsCodeError, PickledTensor, load_plainly
from zenith_checkpoint.reading.state_dict import read_state_dict
from zenith_checkpoint.reading.torch_file import TorchFile, read_torch_file
from zenith_checkpoint.tensor_view import ITEM_BYTES, ShardContent, StoredTensor, TensorView, row_bytes
from zenith_tune.errors import UsageError
from zenith_tune.study.files import read_regular

METADATA = ".metadata"
COMMON = "common.pt"
MAX_METADATA_BYTES = 2**30
MAX_STACKED = 10**6
"""More layers times experts than any model has."""
NO_WEIGHTS = re.compile(
    r"(chained_[0-9]+\.)?(optimizer|opt_param_scheduler|rng_state|rerun_state_machine)\b.*", re.DOTALL
)
_STACKED_LAYERS = re.compile(r"(.*?\blayers\.)(?![0-9])(.*)", re.DOTALL)
_STACKED_EXPERTS = re.compile(r"(.*\.experts\.)experts\.(?![0-9])(.*)", re.DOTALL)
_ONE_EXPERT = re.compile(r"(.*\.experts\.)experts\.([0-9]+\..*)", re.DOTALL)
_HALVES = ("_w", "_v")
_ORIGINAL_SHAPE = "nd_reformulated_orig_global_shape"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Hold a box of a tensor, and the bytes that it lies in."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    tensor: StoredTensor

    def leading(self, depth: int) -> Iterator[tuple[int, ...]]:
        """Return the indices of the leading axes that it has a part of."""
        starts = zip(self.offsets[:depth], self.sizes[:depth], strict=True)
        return itertools.product(*(range(start, start + size) for start, size in starts))

    def piece(self, index: tuple[int, ...], shape: tuple[int, ...], dtype: str) -> FileSlice:
        """Return its part of what the leading axes hold at an index, as rows of bytes."""
        depth = len(index)
        inner = [at - start for at, start in zip(index, self.offsets, strict=False)]
        sizes, offsets = self.sizes[depth:], self.offsets[depth:]
        if sizes[2:] != shape[2:]:
            problem = f"{self.tensor.name!r} is cut along its third axis or beyond, which is not supported"
            raise UsageError(problem, hint="save it with another layout")
        number = 0
        for at, size in zip(inner, self.sizes, strict=False):
            number = number * size + at
        width = row_bytes(sizes, dtype)
        (whole,) = self.tensor.mosaic.slices
        assert isinstance(whole, FileSlice)  # what lies in one file
        return replace(
            whole,
            offset=whole.offset + number * math.prod(sizes) * ITEM_BYTES[dtype],
            stride=width,
            width=width,
            num_rows=sizes[0] if sizes else 1,
            top=offsets[0] if offsets else 0,
            left=offsets[1] * row_bytes(shape[1:], dtype) if len(shape) > 1 else 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedTensor:
    """Hold a tensor of the checkpoint under the name that it has there."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    grid: tuple[int, ...] | None = None
    """How often each axis was cut, where each cell of the cut tensor lies flat, in chunks along one axis more."""

    def _pieces(self, chunk: Chunk, index: tuple[int, ...], shape: tuple[int, ...]) -> list[FileSlice]:
        """Return what a chunk holds of the tensor at an index of the leading axes."""
        if self.grid is None:
            return [chunk.piece(index, shape, self.dtype)]
        *cell, start = chunk.offsets[len(index) :]
        cuts = self.grid[len(index) :]
        if any(cut > 1 for cut in cuts[2:]) or self.grid[: len(index)] != self.shape[: len(index)]:
            raise UsageError(f"{self.key!r} is cut in a way that is not supported", hint="save it with another layout")
        local = tuple(size // cut for size, cut in zip(shape, cuts, strict=True))
        item = ITEM_BYTES[self.dtype]
        left = cell[1] * math.prod(local[1:]) * item if len(cell) > 1 else 0
        flat = chunk.tensor.flat(start * item)
        return list(flat.slices(row_bytes(local, self.dtype), top=cell[0] * local[0] if cell else 0, left=left))

    def weights(self, name: str) -> Iterator[StoredTensor]:
        """Yield the weights that it holds: one, or one for each layer and each expert."""
        template, depth = _unstacked(name)
        if depth > len(self.shape):
            raise UsageError(f"{self.key!r} has no axis for its layers", hint="copy or save it again")
        shape = self.shape[depth:]
        if math.prod(self.shape[:depth]) > MAX_STACKED:
            raise UsageError(f"{self.key!r} would be {math.prod(self.shape[:depth]):,} weights", hint="save it again")
        here: dict[tuple[int, ...], list[Chunk]] = {}
        for chunk in self.chunks:
            for index in chunk.leading(depth):
                here.setdefault(index, []).append(chunk)
        for index in itertools.product(*map(range, self.shape[:depth])):
            slices = tuple(each for chunk in here.get(index, []) for each in self._pieces(chunk, index, shape))
            view = TensorView(shape[0] if shape else 1, row_bytes(shape, self.dtype), slices)
            if sum(each.num_rows * each.width for each in slices) != view.num_bytes:
                problem = f"{self.key!r} must be there as a whole, but has {len(slices)} chunks that do not cover it"
                raise UsageError(problem, hint="copy all .distcp files, or save it again")
            numbered = template.format(*index)
            path, offset = (slices[0].path, slices[0].offset) if slices else (Path(), 0)
            yield StoredTensor(
                name=numbered,
                key_parts=(numbered.count(".") + 1,),
                dtype=self.dtype,
                shape=shape,
                path=path,
                offset=offset,
                pieces=view,
            )


def _unstacked(name: str) -> tuple[str, int]:
    """Return a template of the names in a state_dict, and how many leading axes number them.

    >>> _unstacked("decoder.layers.mlp.experts.experts.linear_fc2.weight")
    ('decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc2.weight', 2)
    """
    template, depth = name.replace("{", "{{").replace("}", "}}"), 0
    for pattern, number in ((_STACKED_LAYERS, r"\g<1>{}.\g<2>"), (_STACKED_EXPERTS, r"\g<1>local_experts.{}.\g<2>")):
        template, count = pattern.subn(number, template)
        depth += count
    return _ONE_EXPERT.sub(r"\g<1>local_experts.\g<2>", template), depth


@dataclass(frozen=True, slots=True, kw_only=True)
class DistFolder:
    """Hold what the metadata of a folder says of its tensors and objects."""

    folder: Path
    entries: dict[str, Any]
    places: dict[str, list[tuple[Any, Any]]]
    """By the key of a tensor or an object: each chunk's index, and where it lies."""
    paths: dict[str, tuple[str, ...]]
    """Where each key stood in the nested state_dict that was saved."""
    flattened: dict[str, tuple[int, ...]]
    """The shapes of the tensors whose cells Megatron saved flat."""

    @classmethod
    def open(cls, folder: Path) -> DistFolder:
        """Read the metadata of a folder."""
        with _damage_explained(folder / METADATA):
            loaded = load_plainly(read_regular(folder / METADATA, MAX_METADATA_BYTES))
            places: dict[str, list[tuple[Any, Any]]] = {}
            for index, place in loaded.get("storage_data").items():
                places.setdefault(index.get("fqn"), []).append((index, place))
            shapes = {key: each.get(_ORIGINAL_SHAPE) for key, each in (loaded.get("mcore_data") or {}).items()}
            return cls(
                folder=folder,
                entries=loaded.get("state_dict_metadata"),
                places=places,
                paths={key: tuple(map(str, each)) for key, each in (loaded.get("planner_data") or {}).items()},
                flattened={key: _counts(shape) for key, shape in shapes.items() if shape is not None},
            )

    def tensors(self, named: dict[str, str], args: dict[str, Any] | None) -> dict[str, StoredTensor]:
        """Return the tensors of some keys under other names, one for each layer; and as built, where arguments are."""
        with _damage_explained(self.folder / METADATA):
            found = [each for key, name in named.items() for each in self.chunked(key).weights(name)]
        whole = _whole(found)
        return whole if args is None else dict(_as_built(tensor, args) for tensor in whole.values())

    def chunked(self, key: str) -> ChunkedTensor:
        """Return one tensor in its chunks."""
        entry = self.entries[key]
        properties = entry.get("properties").state
        dtype = properties[0] if isinstance(properties, tuple) else properties["dtype"]
        if dtype not in ITEM_BYTES:
            raise UsageError(f"{self.folder} holds {key!r} in a type that is none of {', '.join(ITEM_BYTES)}")
        shape = _counts(entry.get("size"))
        sizes = {_counts(each.get("offsets")): _counts(each.get("sizes")) for each in entry.get("chunks")}
        for start, size in sizes.items():
            if any(at + extent > whole for at, extent, whole in zip(start, size, shape, strict=True)):
                raise ValueError(f"a chunk of {size} at {start} is not in {shape}")
        chunks = tuple(self._chunk(key, dtype, sizes, index, place) for index, place in self.places.get(key, []))
        original = self.flattened.get(key)
        if original is None:
            return ChunkedTensor(key=key, dtype=dtype, shape=shape, chunks=chunks)
        if len(original) != len(shape) - 1 or any(size % cut for size, cut in zip(original, shape, strict=False)):
            raise ValueError(f"{original} was not cut into {shape}")
        return ChunkedTensor(key=key, dtype=dtype, shape=original, chunks=chunks, grid=shape[:-1])

    def _chunk(self, key: str, dtype: str, sizes: dict[Any, Any], index: Described, place: Described) -> Chunk:
        offsets = index.get("offset")
        start = tuple(offsets) if offsets is not None else next(iter(sizes))
        file = self._file(place)
        if not isinstance(file.content, PickledTensor):
            raise UsageError(f"{file.path} holds no tensor for {key!r}", hint="copy or save it again")
        tensor = file.tensor(key, (1,), file.content)
        if tensor.dtype != dtype or math.prod(tensor.shape) != math.prod(sizes[start]):
            raise UsageError(f"{file.path} holds another tensor than {METADATA} says for {key!r}", hint="copy it again")
        return Chunk(offsets=start, sizes=sizes[start], tensor=tensor)

    def stored(self, key: str) -> TorchFile:
        """Return an object that is no tensor."""
        with _damage_explained(self.folder / METADATA):
            ((_, place),) = self.places[key]
            return self._file(place)

    def _file(self, place: Described) -> TorchFile:
        name = place.get("relative_path")
        if "/" in name or name in ("", ".", ".."):
            problem = f"{self.folder / METADATA} names {name!r}, which is no file beside it"
            raise UsageError(problem, hint="save it again")
        path = self.folder / name
        if not path.is_file():
            raise UsageError(f"{self.folder} must hold {name}, but does not", hint="copy all of its files")
        if place.get("transform_descriptors"):
            raise UsageError(f"{path} is compressed or changed in a way that is not known", hint="save it plain")
        return read_torch_file(path, place.get("offset"), place.get("length"))


@contextlib.contextmanager
def _damage_explained(path: Path) -> Iterator[None]:
    """Say in one line that a file of metadata is damaged or holds code."""
    try:
        yield
    except UsageError:
        raise
    except HoldsCodeError as error:
        problem = f"{path} names {error}, which no checkpoint needs and only running its code could load"
        raise UsageError(problem, hint="save it again") from None
    except Exception as error:  # a damaged or hostile file may fail in any part of the readers
        reason = " ".join(str(error).split())[:120]
        raise UsageError(f"{path} is damaged or no metadata of torch ({reason})", hint="copy it again") from None


def read_dist(folder: Path) -> ShardContent:
    """Return the weights of a folder, with what Megatron saved beside them."""
    dist = DistFolder.open(folder)
    with _damage_explained(folder / METADATA):
        named = {key: name for key in dist.entries if (name := _weight_name(key, dist.paths)) is not None}
    left_out = tuple(key for key in dist.entries if key not in named or not _is_tensor(dist.entries[key]))
    weights = {key: name for key, name in named.items() if _is_tensor(dist.entries[key])}
    common = folder / COMMON
    if not common.is_file():
        return ShardContent(name=folder.name, tensors=dist.tensors(weights, None), left_out=left_out)
    beside = read_state_dict(common)[0]
    others = tuple(name for name in beside.left_out if "." not in name)
    return ShardContent(
        name=folder.name,
        tensors=dist.tensors(weights, beside.args),
        wrapper="model",
        plain=beside.plain,
        args=beside.args,
        left_out=(*left_out, *others),
    )


def _as_built(tensor: StoredTensor, args: dict[str, Any]) -> tuple[str, StoredTensor]:
    """Return a weight under the name that it had in training; torch_dist has one for all kinds of layers."""
    name = tensor.name
    if args.get("transformer_impl") == "local":
        name = re.sub(r"\bself_attention\.linear_qkv\.layer_norm_", "input_layernorm.", name)
        name = re.sub(r"\bmlp\.linear_fc1\.layer_norm_", "pre_mlp_layernorm.", name)
    if args.get("moe_grouped_gemm"):
        name = re.sub(r"\blocal_experts\.([0-9]+)\.(linear_fc[12]\.(?:weight|bias))", r"\2\1", name)
    return name, replace(tensor, name=name, key_parts=(name.count(".") + 1,))


def _is_tensor(entry: Any) -> bool:
    return isinstance(entry, Described) and entry.kind.endswith(".TensorStorageMetadata")


def _weight_name(key: str, paths: dict[str, tuple[str, ...]]) -> str | None:
    """Return what a weight is called; a state_dict that was saved under "model" has only weights there."""
    if any(path[0] == "model" and len(path) > 1 for path in paths.values()):
        path = paths.get(key, ("",))
        return ".".join(path[1:]) if path[0] == "model" else None
    return None if NO_WEIGHTS.fullmatch(key) else key


def _counts(value: Any) -> tuple[int, ...]:
    counts = tuple(value)
    if not all(type(each) is int and each >= 0 for each in counts):
        raise ValueError(f"{counts} are no sizes")
    return counts


def _whole(tensors: list[StoredTensor]) -> dict[str, StoredTensor]:
    """Return the weights by name; a gate and its up-projection that lie apart are one weight."""
    by_name = {tensor.name: tensor for tensor in tensors}
    gate, up = _HALVES
    for name in [name for name in by_name if name.endswith(gate) and name.removesuffix(gate) + up in by_name]:
        whole = name.removesuffix(gate)
        parts = [by_name.pop(name), by_name.pop(whole + up)]
        view = TensorView.stack([each.mosaic for each in parts])
        shape = (sum(each.shape[0] for each in parts), *parts[0].shape[1:])
        by_name[whole] = replace(parts[0], name=whole, shape=shape, pieces=view)
    return by_name
