"""Reads folders of torch.distributed.checkpoint (.metadata and *.distcp), which Megatron calls torch_dist.

A tensor lies in chunks, each a file of torch.save inside a .distcp file. Megatron puts the layers of a model, and the
experts of a layer, along leading axes of one tensor; here each is a weight of its own, under its name in a state_dict.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import pickle
import re
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import EnumMeta
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint import metadata as torch_metadata
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from zenith_checkpoint.lazy_tensor import LazyTensor
from zenith_checkpoint.reading.shard_set import DIST_METADATA as METADATA
from zenith_checkpoint.reading.state_dict import read_state_dict
from zenith_checkpoint.reading.torch_file import (
    Described,
    HoldsCodeError,
    TorchFile,
    described,
    map_file,
    read_torch_file,
)
from zenith_checkpoint.tensors import ShardContent, StoredTensor
from zenith_tune.errors import UsageError
from zenith_tune.study.files import read_regular

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


def _member(kind: Any, name: str) -> Any:
    """Return a member of an enumeration, which Python 3.11.0 to 3.11.3 saves by getattr."""
    return kind[name] if isinstance(kind, EnumMeta) else Described()


_KNOWN: dict[str, Any] = {
    f"{each.__module__}.{each.__qualname__}": each
    for each in (
        *(OrderedDict, Metadata, MetadataIndex, TensorStorageMetadata, torch_metadata.BytesStorageMetadata),
        *(torch_metadata.ChunkStorageMetadata, torch_metadata.TensorProperties, torch_metadata.StorageMeta),
        *(torch_metadata._MEM_FORMAT_ENCODING, filesystem._StorageInfo, filesystem._StoragePrefix),
        *(torch.Size, torch.device, torch.serialization._get_layout),
    )
} | {str(each): each for each in vars(torch).values() if isinstance(each, torch.dtype)}
_KNOWN["builtins.getattr"] = _member
"""What metadata of torch consists of."""


class _MetadataReader(pickle.Unpickler):
    """Torch reads metadata by a plain pickle, which would run code; here other classes are not even imported."""

    def find_class(self, module: str, name: str) -> Any:
        path = f"{module}.{name}"
        return _KNOWN[path] if path in _KNOWN else described(path)


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
    """The tensors and objects of a folder, by its metadata."""

    folder: Path
    entries: dict[str, Any]
    places: dict[str, list[tuple[MetadataIndex, Any]]]
    """The index and the place of each chunk, by the key of the tensor or object."""
    paths: dict[str, tuple[str, ...]]
    """Place of each key in the nested state_dict that was saved."""
    flattened: dict[str, tuple[int, ...]]
    """Shapes of the tensors whose cells Megatron saved flat."""
    mapped: dict[str, torch.UntypedStorage] = field(default_factory=dict)
    """Mapped files by name."""

    @classmethod
    def open(cls, folder: Path) -> DistFolder:
        """Read the metadata of a folder."""
        with _damage_explained(folder / METADATA):
            loaded = _MetadataReader(io.BytesIO(read_regular(folder / METADATA, MAX_METADATA_BYTES))).load()
            places: dict[str, list[tuple[MetadataIndex, Any]]] = {}
            for index, place in loaded.storage_data.items():
                places.setdefault(index.fqn, []).append((index, place))
            shapes = {key: each.get(_ORIGINAL_SHAPE) for key, each in getattr(loaded, "mcore_data", {}).items()}
            return cls(
                folder=folder,
                entries=loaded.state_dict_metadata,
                places=places,
                paths={key: tuple(map(str, each)) for key, each in (loaded.planner_data or {}).items()},
                flattened={key: _counts(shape) for key, shape in shapes.items() if shape is not None},
            )

    def tensors(self, named: dict[str, str], args: dict[str, Any] | None) -> dict[str, StoredTensor]:
        """Return the tensors of some keys under other names, one for each layer; and as built, where arguments are."""
        with _damage_explained(self.folder / METADATA):
            found = [each for key, name in named.items() for each in self._weights(key, name)]
        whole = _whole(found)
        return whole if args is None else dict(_as_built(tensor, args) for tensor in whole.values())

    def _weights(self, key: str, name: str) -> Iterator[StoredTensor]:
        """Yield the weights that a tensor holds: one, or one for each layer and each expert."""
        data = self.data(key)
        template, depth = _unstacked(name)
        if depth > len(data.shape):
            raise UsageError(f"{key!r} has no axis for its layers", hint="copy or save it again")
        leading = data.shape[:depth]
        if math.prod(leading) > MAX_STACKED:
            raise UsageError(f"{key!r} would be {math.prod(leading):,} weights", hint="save it again")
        path = self.folder / self.places[key][0][1].relative_path
        for index in itertools.product(*map(range, leading)):
            weight, numbered = data, template.format(*index)
            for at in index:
                weight = weight.select(at)
            yield StoredTensor(name=numbered, key_parts=(numbered.count(".") + 1,), path=path, data=weight)

    def data(self, key: str) -> LazyTensor:
        """Return one tensor, which its chunks must cover."""
        entry: TensorStorageMetadata = self.entries[key]
        shape = _counts(entry.size)
        sizes = {_counts(each.offsets): _counts(each.sizes) for each in entry.chunks}
        for start, size in sizes.items():
            if any(at + extent > whole for at, extent, whole in zip(start, size, shape, strict=True)):
                raise ValueError(f"a chunk of {size} at {start} is not in {shape}")
        chunks = dict(self._chunk(key, sizes, index, place) for index, place in self.places.get(key, []))
        original = self.flattened.get(key)
        held = sum(math.prod(each.shape) for each in chunks.values())
        if not chunks or held != math.prod(original or shape):
            problem = f"{key!r} must be there as a whole, but has {len(chunks)} chunks that do not cover it"
            raise UsageError(problem, hint="copy all .distcp files, or save it again")
        return LazyTensor.assembled(shape, chunks) if original is None else _of_cells(original, shape, chunks)

    def _chunk(
        self, key: str, sizes: dict[tuple[int, ...], tuple[int, ...]], index: MetadataIndex, place: Any
    ) -> tuple[tuple[int, ...], LazyTensor]:
        """Return the offsets of a chunk, and the chunk."""
        start = tuple(index.offset) if index.offset is not None else next(iter(sizes))
        file, dtype = self._file(place), self.entries[key].properties.dtype
        if not isinstance(file.content, torch.Tensor):
            raise UsageError(f"{file.path} holds no tensor for {key!r}", hint="copy or save it again")
        data = file.tensor(key, (1,), file.content).data
        if data.dtype != dtype or math.prod(data.shape) != math.prod(sizes[start]):
            raise UsageError(f"{file.path} holds another tensor than {METADATA} says for {key!r}", hint="copy it again")
        return start, data if data.shape == sizes[start] else data.flattened().reshaped(sizes[start])

    def stored(self, key: str) -> TorchFile:
        """Return an object that is no tensor."""
        with _damage_explained(self.folder / METADATA):
            ((_, place),) = self.places[key]
            return self._file(place)

    def _file(self, place: Any) -> TorchFile:
        name = place.relative_path
        if "/" in name or name in ("", ".", ".."):
            problem = f"{self.folder / METADATA} names {name!r}, which is no file next to it"
            raise UsageError(problem, hint="save it again")
        path = self.folder / name
        if not path.is_file():
            raise UsageError(f"{self.folder} must hold {name}, but does not", hint="copy all of its files")
        if getattr(place, "transform_descriptors", None):
            raise UsageError(f"{path} is compressed or changed in a way that is not known", hint="save it plain")
        if name not in self.mapped:
            self.mapped[name] = map_file(path)
        return read_torch_file(path, place.offset, place.length, self.mapped[name])


def _of_cells(shape: tuple[int, ...], grid: tuple[int, ...], chunks: dict[tuple[int, ...], LazyTensor]) -> LazyTensor:
    """Return a tensor that was cut into the cells of a grid, each of which lies flat in chunks along one more axis."""
    *cuts, _ = grid
    if len(cuts) != len(shape) or any(size % cut for size, cut in zip(shape, cuts, strict=True)):
        raise ValueError(f"{shape} was not cut into {grid}")
    local = tuple(size // cut for size, cut in zip(shape, cuts, strict=True))
    cells: dict[tuple[int, ...], dict[tuple[int, ...], LazyTensor]] = {}
    for (*cell, start), chunk in chunks.items():
        offsets = tuple(at * size for at, size in zip(cell, local, strict=True))
        cells.setdefault(offsets, {})[start,] = chunk.flattened()
    flat = (math.prod(local),)
    whole = {offsets: LazyTensor.assembled(flat, parts).reshaped(local) for offsets, parts in cells.items()}
    return LazyTensor.assembled(shape, whole)


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
    """Return the weights of a folder, with what Megatron saved next to them."""
    dist = DistFolder.open(folder)
    with _damage_explained(folder / METADATA):
        named = {key: name for key in dist.entries if (name := _weight_name(key, dist.paths)) is not None}
    tensors = {key for key, entry in dist.entries.items() if isinstance(entry, TensorStorageMetadata)}
    left_out = tuple(key for key in dist.entries if key not in named or key not in tensors)
    weights = {key: name for key, name in named.items() if key in tensors}
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
        by_name[whole] = replace(parts[0], name=whole, data=LazyTensor.cat([each.data for each in parts]))
    return by_name
