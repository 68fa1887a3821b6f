"""Reads and writes .bin files of torch.save, with tensors mapped from a file and so never all in memory."""

from __future__ import annotations

import errno
import importlib
import mmap
import os
import struct
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from zenith_tune.checkpoint.output_place import beside
from zenith_tune.checkpoint.tensor_view import ITEM_BYTES, TORCH_NAMES, JoinedTensor, ShardContent, StoredTensor
from zenith_tune.errors import UsageError
from zenith_tune.study.files import open_regular


def import_torch(why: str) -> Any:
    """Return torch, or refuse in one line that names the extra."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        hint = "install 'zenith-tune[checkpoint]', or use .safetensors"
        raise UsageError(f"{why}, which needs torch, but torch is not installed", hint=hint) from None


ALIGNMENT = 64


def write_bin(path: Path, tensors: Iterable[JoinedTensor], wrapper: str | None, plain: dict[str, Any]) -> None:
    """Write a new file that holds the tensors nested as they were found, or flat where they were not nested."""
    torch = import_torch(f"{path.name} is a .bin file")
    with beside(path) as raw:
        listed = list(tensors)
        offsets = _write_raw(raw, listed)
        with raw.open("r+b") as file:
            # Shared, so that the kernel may take the pages back at any time.
            view = mmap.mmap(file.fileno(), 0)
        weights: dict[str, Any] = {}
        for tensor, offset in zip(listed, offsets, strict=True):
            _put(weights, tensor, _mapped(torch, view, tensor, offset))
        whole = {**plain, wrapper: weights} if wrapper else {**weights, **plain}
        try:
            with path.open("xb") as target:
                torch.save(whole, target)
        except RuntimeError as error:
            raise _cause(error) from None


def _cause(error: RuntimeError) -> BaseException:
    """Return what struck while torch wrote, which raises an error of its own as it closes a half-written file."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt | OSError):
        cause = cause.__context__
    return cause or OSError(errno.EIO, " ".join(str(error).split())[:120])


def _write_raw(path: Path, tensors: list[JoinedTensor]) -> list[int]:
    offsets = []
    with path.open("xb") as file:
        for tensor in tensors:
            file.write(bytes(-file.tell() % ALIGNMENT))
            offsets.append(file.tell())
            for block in tensor.mosaic.blocks():
                file.write(block.data)
        file.write(bytes(ALIGNMENT))  # an empty file cannot be mapped
    return offsets


def _mapped(torch: Any, view: mmap.mmap, tensor: JoinedTensor, offset: int) -> Any:
    dtype = getattr(torch, TORCH_NAMES[tensor.dtype])
    count = tensor.num_bytes // ITEM_BYTES[tensor.dtype]
    flat = torch.frombuffer(view, dtype=dtype, count=count, offset=offset) if count else torch.empty(0, dtype=dtype)
    return flat.reshape(tensor.shape)


def _put(weights: dict[str, Any], tensor: JoinedTensor, value: Any) -> None:
    """Put a tensor where its keys lead."""
    parts, keys = tensor.name.split("."), []
    for length in tensor.key_parts:
        keys.append(".".join(parts[:length]))
        parts = parts[length:]
    for key in keys[:-1]:
        weights = weights.setdefault(key, {})
    weights[keys[-1]] = value


WRAPPERS = ("model", "module", "state_dict")
_LOCAL_HEADER = struct.Struct("<26xHH")


def read_bin(path: Path) -> ShardContent:
    """Return the tensors of a shard that torch.save wrote, and where they lie in it."""
    torch = import_torch(f"{path.name} is a .bin shard")
    loaded = _loaded(torch, path)
    if "model0" in loaded:
        problem = f"shard {path} holds the stages of an interleaved pipeline (model0, model1 ...)"
        raise UsageError(problem, hint="save it without virtual pipeline stages")
    wrapper = next((key for key in WRAPPERS if isinstance(loaded.get(key), dict)), None)
    weights, beside = (loaded, {}) if wrapper is None else (loaded[wrapper], dict(loaded))
    beside.pop(wrapper or "", None)
    plain = {str(key): value for key, value in beside.items() if _is_plain(value)}
    leaves = list(_leaves(weights))
    if wrapper is None:
        plain = {keys[0]: value for keys, value in leaves if len(keys) == 1 and _is_plain(value)}
    _refuse_old_order(plain, path)
    dropped = [".".join(keys) for keys, value in leaves if not isinstance(value, torch.Tensor)]
    left_out = tuple(name for name in [*map(str, beside), *dropped] if name not in plain)
    found = {keys: value for keys, value in leaves if isinstance(value, torch.Tensor)}
    return ShardContent(tensors=_tensors(torch, found, path), wrapper=wrapper, plain=plain, left_out=left_out)


def _loaded(torch: Any, path: Path) -> dict[Any, Any]:
    try:
        open_regular(Path(os.path.realpath(path))).close()  # a pipe would be waited for
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is refused below, torch speaks twice
            loaded = torch.load(str(path), map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # a damaged or hostile file may fail in any part of the unpickler
        reason = " ".join(str(error).split())
        if "Unsupported" in reason or "weights_only" in reason.lower() or "WeightsUnpickler" in reason:
            raise UsageError(f"shard {path} holds more than weights ({_culprit(reason)}), which only running its "
                             f"code could load: save the model's state_dict alone") from None  # fmt: skip
        if "mmap can only be used" in reason:
            raise UsageError(f"shard {path} is in torch's old format, or damaged", hint="save it again") from None
        raise UsageError(
            f"shard {path} is damaged or no torch file ({reason[:120]})", hint="copy or save it again"
        ) from None
    if not isinstance(loaded, dict):
        raise UsageError(
            f"shard {path} must hold a state_dict, but holds a {type(loaded).__name__}", hint="save a state_dict"
        )
    return loaded


def _culprit(reason: str) -> str:
    """Return what of torch's long message names the thing that it refused."""
    _, found, rest = reason.partition("GLOBAL ")
    return rest.split()[0].rstrip(".,") if found and rest.split() else "code"


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _leaves(node: dict[Any, Any], keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*keys, str(key)))
        else:
            yield (*keys, str(key)), value


def _refuse_old_order(plain: dict[str, Any], path: Path) -> None:
    version = plain.get("checkpoint_version")
    if isinstance(version, int | float) and version < 2:
        problem = f"shard {path} has checkpoint_version {version}, whose order of queries, keys and values is another"
        raise UsageError(problem, hint="load and save it with a Megatron-LM that writes version 3")


def _tensors(torch: Any, found: dict[tuple[str, ...], Any], path: Path) -> dict[str, StoredTensor]:
    names = {getattr(torch, torch_name, None): name for name, torch_name in TORCH_NAMES.items()}
    for keys, value in found.items():
        _refuse_tensor(torch, value, ".".join(keys), path, is_known=value.dtype in names)
    places = _places(list(found.values()), path)
    tensors: dict[str, StoredTensor] = {}
    for keys, value in found.items():
        name, dtype = ".".join(keys), names[value.dtype]
        if name in tensors:
            raise UsageError(f"shard {path} names {name!r} twice", hint="save a plain state_dict")
        tensors[name] = StoredTensor(
            name=name,
            key_parts=tuple(key.count(".") + 1 for key in keys),
            dtype=dtype,
            shape=tuple(value.shape),
            path=path,
            offset=places.get(value.untyped_storage().data_ptr(), 0) + value.storage_offset() * ITEM_BYTES[dtype],
        )
    return tensors


def _refuse_tensor(torch: Any, value: Any, name: str, path: Path, *, is_known: bool) -> None:
    if value.layout != torch.strided or not is_known:
        raise UsageError(
            f"shard {path} holds {name!r} as {value.dtype}, {value.layout}", hint="save it as a dense tensor"
        )
    if not value.is_contiguous():
        raise UsageError(
            f"shard {path} holds {name!r} as a view that is not contiguous", hint="save it by .contiguous()"
        )


def _places(tensors: list[Any], path: Path) -> dict[int, int]:
    """Return where the file holds what torch has mapped, by address.

    Torch does not tell, but it maps the file as one, so that the addresses of all storages and the places of all
    records of the zip file differ by one number, the address of the file's beginning.
    """
    storages = {storage.data_ptr(): storage.nbytes() for storage in (each.untyped_storage() for each in tensors)}
    storages.pop(0, None)  # nothing lies nowhere
    if not storages:
        return {}
    records = _records(path)
    first, size = next(iter(storages.items()))
    for offset, length in records.items():
        start = first - offset
        if length != size or start % mmap.ALLOCATIONGRANULARITY:
            continue
        if all(records.get(address - start) == nbytes for address, nbytes in storages.items()):
            return {address: address - start for address in storages}
    raise UsageError(f"shard {path} is a torch file of an unknown kind", hint="save it again by torch.save")


def _records(path: Path) -> dict[int, int]:
    """Return the size of each record in a zip file that is not compressed, by the place of its first byte."""
    found = {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for info in archive.infolist():
            file.seek(info.header_offset)
            header = file.read(_LOCAL_HEADER.size)
            if info.compress_type == zipfile.ZIP_STORED and len(header) == _LOCAL_HEADER.size:
                name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
                found[info.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes] = info.file_size
    return found
