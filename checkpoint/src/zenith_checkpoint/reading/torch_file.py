"""Reads what torch.save wrote, as a file or inside one: torch says where each tensor lies, and the bytes are mapped.

Files are read by torch's `weights_only` reader, which runs no code. Objects of classes that are saved with weights in
checkpoints become a Described, whatever they were.
"""

from __future__ import annotations

import bisect
import io
import mmap
import os
import warnings
import zipfile
import zlib
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from zenith_checkpoint.lazy_tensor import Box, LazyTensor
from zenith_checkpoint.tensors import DTYPE_NAMES, StoredTensor
from zenith_tune.errors import UsageError
from zenith_tune.study.files import open_regular

DESCRIBED = {
    *("torch", "megatron", "transformer_engine", "transformer_engine_torch", "apex", "accelerate", "deepspeed"),
    *("transformers", "omegaconf", "nemo", "modelopt", "numpy", "argparse", "collections", "types", "enum", "pathlib"),
    *("datetime", "signal", "functools", "copyreg", "io", "_io", "_codecs"),
}
"""Packages whose objects are saved with weights in checkpoints."""
CHUNK_BYTES = 2**20
HEADER_BYTES = 30
"""The fixed part of the header before a member of a ZIP archive."""


class HoldsCodeError(Exception):
    """Raised for a pickle that names something which no checkpoint needs."""


class Described:
    """An object of a class that is not made: the name of its class, and its state."""

    kind = ""
    state: Any = None

    def __new__(cls, *args: Any, **keywords: Any) -> Described:
        return object.__new__(cls)

    def __init__(self, *args: Any, **keywords: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        """Drop an entry of what was a dictionary."""

    def append(self, value: Any) -> None:
        """Drop an entry of what was a list."""


def described(path: str) -> type[Described]:
    """Return a class that stands for one of a known package; refuse others."""
    # By getattr, which is not called here either, Python 3.11.0 to 3.11.3 saves members of enumerations.
    if path.partition(".")[0] not in DESCRIBED and path != "builtins.getattr":
        raise HoldsCodeError(path)
    return type("Described", (Described,), {"kind": path})


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFile:
    """A file of torch.save, or a part of one; its tensors have places, but no data yet."""

    path: Path
    content: Any
    mapped: torch.UntypedStorage
    """All bytes of the file, read when they are touched."""
    start: int
    """Place in the file where the saved one begins."""
    end: int
    records: list[zipfile.ZipInfo]
    """Entries of the zip file, in the order of their places."""
    checked: set[int] = field(default_factory=set)
    """Places of the entries whose checksums were compared."""

    def tensor(self, name: str, key_parts: tuple[int, ...], value: torch.Tensor) -> StoredTensor:
        """Return one of its tensors, mapped and not read."""

        def refuse(kind: str, hint: str) -> UsageError:
            return UsageError(f"shard {self.path} holds {name!r} as {kind}", hint=hint)

        if value.layout is not torch.strided or value.dtype not in DTYPE_NAMES:
            raise refuse(f"a tensor of {value.layout} and {value.dtype}", "save it as a dense tensor")
        if not value.is_contiguous():
            raise refuse("a view that is not contiguous", "save it by .contiguous()")
        offset = value.untyped_storage()._checkpoint_offset
        record = self.records[bisect.bisect(self.records, offset, key=lambda each: each.header_offset) - 1]
        offset += self.start + value.storage_offset() * value.dtype.itemsize
        if offset + value.numel() * value.dtype.itemsize > self.end:
            raise refuse("a tensor without its bytes", "copy or save it again")
        storage = self.mapped[offset : offset + value.numel() * value.dtype.itemsize]
        data = LazyTensor.of(torch.empty(0, dtype=value.dtype).set_(storage).reshape(value.shape))

        def read(box: Box) -> torch.Tensor:
            self._check(record)
            return data.read_box(box)

        return StoredTensor(
            name=name,
            key_parts=key_parts,
            path=self.path,
            data=LazyTensor(shape=data.shape, dtype=data.dtype, read_box=read),
        )

    def _check(self, record: zipfile.ZipInfo) -> None:
        """Refuse bytes that are not those that were saved, which torch does not notice; checksums may be left out."""
        if record.header_offset in self.checked or not record.CRC:
            return
        checksum, left = 0, record.file_size
        with open_regular(Path(os.path.realpath(self.path))) as file:
            file.seek(self.start + record.header_offset)
            header = file.read(HEADER_BYTES)
            file.seek(int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little"), os.SEEK_CUR)
            while left and (data := file.read(min(CHUNK_BYTES, left))):
                checksum, left = zlib.crc32(data, checksum), left - len(data)
        if checksum != record.CRC:
            problem = f"shard {self.path} is damaged: the checksum of {record.filename!r} is another than when saved"
            raise UsageError(problem, hint="copy or save it again")
        self.checked.add(record.header_offset)


def map_file(path: Path) -> torch.UntypedStorage:
    """Return all bytes of a file, which are read when they are touched and which the kernel may take back."""
    with open_regular(Path(os.path.realpath(path))) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that they cannot be written
        # Not torch's own mapping, which is private: it would count as memory that a process may come to use.
        return torch.frombuffer(
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=torch.uint8
        ).untyped_storage()


def read_torch_file(
    path: Path, offset: int = 0, num_bytes: int | None = None, mapped: torch.UntypedStorage | None = None
) -> TorchFile:
    """Read a file of torch.save, or one that lies between two places of another file, which may be mapped already."""
    try:
        with open_regular(Path(os.path.realpath(path))) as file:
            size = os.fstat(file.fileno()).st_size
            end = size if num_bytes is None else offset + num_bytes
            if end > size:
                raise UsageError(f"shard {path} is truncated: it has {size:,} bytes of {end:,}", hint="copy it again")
            section = _section(file, offset, end)
            with zipfile.ZipFile(section) as archive:
                records = sorted(archive.infolist(), key=lambda each: each.header_offset)
            if any(each.compress_type != zipfile.ZIP_STORED for each in records):
                raise UsageError(f"shard {path} is compressed", hint="save it again by torch.save")
            content = _loaded(section)
            mapped = map_file(path) if mapped is None else mapped
            return TorchFile(path=path, content=content, mapped=mapped, start=offset, end=end, records=records)
    except UsageError:
        raise
    except HoldsCodeError as error:
        problem = f"shard {path} holds more than weights ({error}), which only running its code could load"
        raise UsageError(problem, hint="save the model's state_dict alone") from None
    except zipfile.BadZipFile:
        raise UsageError(f"shard {path} is in torch's old format, or damaged", hint="save it again") from None
    except Exception as error:  # a damaged or hostile file may fail in any part of the readers
        reason = " ".join(str(error).split())[:120]
        raise UsageError(f"shard {path} is damaged or no torch file ({reason})", hint="copy or save it again") from None


def _loaded(file: BinaryIO) -> Any:
    file.seek(0)
    names: Iterable[str] = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    # Only what is not safe anyway: torch forgets all of them at the end, also what another library had registered.
    known = [Namespace if name == "argparse.Namespace" else (described(name), name) for name in names]
    file.seek(0)
    with torch.serialization.safe_globals(known), FakeTensorMode():
        return torch.load(file, map_location="cpu", weights_only=True)


class _Section(io.RawIOBase):
    """The bytes between two places of a file, as a file."""

    def __init__(self, file: BinaryIO, start: int, end: int) -> None:
        self._file, self._start, self._size, self._at = file, start, end - start, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = max(0, offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = os.pread(self._file.fileno(), min(len(buffer), max(self._size - self._at, 0)), self._start + self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _section(file: BinaryIO, start: int, end: int) -> io.BufferedReader:
    return io.BufferedReader(_Section(file, start, end))
