"""Reads what torch.save wrote, as a file or inside one, without torch: where each tensor lies, and its checksum."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from zenith_checkpoint.file_slice import Record
from zenith_checkpoint.reading.safe_pickle import HoldsCodeError, PickledTensor, load_plainly
from zenith_checkpoint.tensor_view import ITEM_BYTES, StoredTensor
from zenith_tune.errors import UsageError
from zenith_tune.study.files import open_regular

_LOCAL_HEADER = struct.Struct("<26xHH")


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFile:
    """Hold what was saved, with its tensors described, and the records that they lie in."""

    path: Path
    content: Any
    records: dict[str, Record]

    def tensor(self, name: str, key_parts: tuple[int, ...], value: PickledTensor) -> StoredTensor:
        """Return one of its tensors with its place in the file."""

        def refuse(kind: str, hint: str) -> UsageError:
            return UsageError(f"shard {self.path} holds {name!r} as {kind}", hint=hint)

        if not value.is_contiguous:
            raise refuse("a view that is not contiguous", "save it by .contiguous()")
        record = self.records.get(value.storage)
        if record is None:
            raise refuse("a tensor without its bytes", "copy or save it again")
        item = ITEM_BYTES[value.dtype]
        tensor = StoredTensor(
            name=name,
            key_parts=key_parts,
            dtype=value.dtype,
            shape=value.shape,
            path=self.path,
            offset=record.offset + value.offset * item,
            record=record,
        )
        if value.offset * item + tensor.num_bytes > record.num_bytes:
            raise refuse(f"{tensor.num_bytes:,} bytes of a storage of {record.num_bytes:,}", "copy or save it again")
        return tensor


def read_torch_file(path: Path, offset: int = 0, num_bytes: int | None = None) -> TorchFile:
    """Read a file of torch.save, or one that lies between two places of another file."""
    try:
        with open_regular(Path(os.path.realpath(path))) as file:
            size = os.fstat(file.fileno()).st_size
            end = size if num_bytes is None else offset + num_bytes
            if end > size:
                raise UsageError(f"shard {path} is truncated: it has {size:,} bytes of {end:,}", hint="copy it again")
            records = _records(file, path, offset, end)
        return _parsed(path, records)
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


def _parsed(path: Path, records: dict[str, Record]) -> TorchFile:
    pickles = [name for name in records if name.rpartition("/")[2] == "data.pkl"]
    if len(pickles) != 1:
        raise UsageError(f"shard {path} is no torch file: it has no data.pkl", hint="save it by torch.save")
    folder = pickles[0].removesuffix("data.pkl")
    order = records.get(f"{folder}byteorder")
    if order is not None and order.read() != b"little":
        raise UsageError(f"shard {path} was saved in big-endian order", hint="save it on a little-endian machine")
    storages = f"{folder}data/"
    by_key = {name.removeprefix(storages): each for name, each in records.items() if name.startswith(storages)}
    return TorchFile(path=path, content=load_plainly(records[pickles[0]].read()), records=by_key)


class _Part(io.RawIOBase):
    """Read what lies between two places of a file."""

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


def _records(file: BinaryIO, path: Path, start: int, end: int) -> dict[str, Record]:
    """Return the entries of a zip file by name; torch compresses none of them."""
    found = {}
    part = io.BufferedReader(_Part(file, start, end))
    with zipfile.ZipFile(part) as archive:
        for info in archive.infolist():
            part.seek(info.header_offset)
            name_bytes, extra_bytes = _LOCAL_HEADER.unpack(part.read(_LOCAL_HEADER.size))
            first = start + info.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes
            if info.compress_type != zipfile.ZIP_STORED or first + info.file_size > end:
                raise UsageError(f"shard {path} is a torch file of an unknown kind", hint="save it again by torch.save")
            found[info.filename] = Record(path=path, offset=first, num_bytes=info.file_size, crc=info.CRC)
    return found
