"""Reads the pickles inside checkpoints as plain records: nothing that a file names is imported, made or called."""

from __future__ import annotations

import collections
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zenith_checkpoint.tensor_view import TORCH_NAMES

_DTYPES = {torch_name: name for name, torch_name in TORCH_NAMES.items()}
_STORAGES = {
    "BoolStorage": "bool",
    "ByteStorage": "uint8",
    "CharStorage": "int8",
    "ShortStorage": "int16",
    "IntStorage": "int32",
    "LongStorage": "int64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "ComplexFloatStorage": "complex64",
}
_PLAIN: dict[str, Any] = {
    "collections.OrderedDict": collections.OrderedDict,
    "torch.Size": tuple,
    "builtins.set": set,
    "__builtin__.set": set,
    "torch.UntypedStorage": "U8",
    "torch.storage.UntypedStorage": "U8",
    **{f"torch.{torch_name}": name for torch_name, name in _DTYPES.items()},
    **{f"torch.{storage}": _DTYPES[torch_name] for storage, torch_name in _STORAGES.items()},
}
_DESCRIBED = {
    "torch",
    "megatron",
    "argparse",
    "numpy",
    "collections",
    "types",
    "enum",
    "pathlib",
    "datetime",
    "signal",
    "functools",
    "copyreg",
    "io",
    "_io",
    "_codecs",
    "transformer_engine",
    "transformer_engine_torch",
    "apex",
    "accelerate",
    "deepspeed",
    "transformers",
    "omegaconf",
    "nemo",
    "modelopt",
}
"""Packages whose objects stand beside weights in checkpoints; each becomes a Described, whatever it was."""


class HoldsCodeError(Exception):
    """Raised for a pickle that names something which no checkpoint needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PickledTensor:
    """Hold where a pickle says that a tensor lies: elements of a storage, by its key."""

    storage: str
    dtype: str
    offset: int
    """In elements."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def is_contiguous(self) -> bool:
        """Tell whether the elements lie in order, without gaps."""
        expected = 1
        for size, step in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and step != expected:
                return 0 in self.shape
            expected *= size
        return True


class Described:
    """Stand for an object of a class that is not made: its name, its arguments and its state."""

    kind = ""

    def __new__(cls, *args: Any, **keywords: Any) -> Described:
        made = object.__new__(cls)
        made.args, made.state = args, keywords
        return made

    args: tuple[Any, ...]
    state: Any

    def __init__(self, *args: Any, **keywords: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        """Drop an entry of what was a dictionary."""

    def append(self, value: Any) -> None:
        """Drop an entry of what was a list."""

    def get(self, key: str) -> Any:
        """Return one value of the state, or None."""
        return self.state.get(key) if isinstance(self.state, dict) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        # Made anew for each pickle, which could otherwise leave something on them for the next.
        self._known: dict[str, Any] = {**_PLAIN, **_rebuilders()}

    def find_class(self, module: str, name: str) -> Any:
        path = f"{module}.{name}"
        if path not in self._known:
            if module.partition(".")[0] not in _DESCRIBED:
                raise HoldsCodeError(path)
            self._known[path] = type("Described", (Described,), {"kind": path})
        return self._known[path]

    def persistent_load(self, pid: Any) -> tuple[str, str]:
        kind, dtype, key, _, _ = pid
        if kind != "storage" or not isinstance(dtype, str) or not isinstance(key, str):
            raise pickle.UnpicklingError(f"a storage is described as {str(pid)[:60]}")
        return key, dtype


def _rebuilders() -> dict[str, Callable[..., Any]]:
    def tensor(storage: tuple[str, str], offset: int, shape: Any, stride: Any, *rest: Any) -> PickledTensor:
        shape, stride = tuple(shape), tuple(stride)
        if len(shape) != len(stride) or not all(type(each) is int and each >= 0 for each in (offset, *shape, *stride)):
            raise pickle.UnpicklingError(f"a tensor is described as {shape} by {stride} from {offset}")
        key, dtype = storage
        return PickledTensor(storage=key, dtype=dtype, offset=offset, shape=shape, stride=stride)

    def typed(storage: tuple[str, str], offset: int, shape: Any, stride: Any, *rest: Any) -> PickledTensor:
        _, _, dtype, *_ = rest  # behind requires_grad and backward_hooks
        return tensor((storage[0], dtype), offset, shape, stride)

    def first(value: Any, *rest: Any) -> Any:
        return value

    def with_attributes(rebuild: Any, kind: Any, args: Any, state: Any) -> Any:
        if rebuild not in (tensor, typed, first):
            raise pickle.UnpicklingError("a tensor with attributes is none of torch's own")
        return rebuild(*args)

    return {
        "torch._utils._rebuild_tensor_v2": tensor,
        "torch._utils._rebuild_tensor_v3": typed,
        "torch._utils._rebuild_parameter": first,
        "torch._utils._rebuild_parameter_with_state": first,
        "torch._tensor._rebuild_from_type_v2": with_attributes,
    }


def load_plainly(data: bytes) -> Any:
    """Return what a pickle holds: containers and plain values as they are, tensors and all other objects described."""
    return _Unpickler(data).load()
