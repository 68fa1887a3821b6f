"""The formats that a layout can be written in, and what of the search space each can say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from zenith_tune.emit.accelerate import emit_accelerate
from zenith_tune.emit.deepspeed import SIZES, emit_deepspeed
from zenith_tune.emit.emission import Emission, Target
from zenith_tune.emit.megatron import emit_megatron
from zenith_tune.emit.ms_swift import emit_ms_swift
from zenith_tune.errors import UnknownNameError
from zenith_tune.layouts.search_space import RECOMPUTE, SearchSpace

DATA_PARALLEL_ONLY = ("deepspeed", "fsdp", "hf-accelerate")
ONE_EACH = dict.fromkeys(SIZES, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """Hold one format: who writes it, for which framework, and what it cannot say."""

    write: Callable[[Target], Emission]
    framework: str
    """The framework that is planned for where none is given."""
    pinned: dict[str, int] = field(default_factory=dict)
    uneven_splits: bool = True
    recompute: tuple[str, ...] = RECOMPUTE

    def narrowed(self, space: SearchSpace, framework: str) -> SearchSpace:
        """Return the part of a space that this format can say of a framework."""
        if framework in DATA_PARALLEL_ONLY:
            return replace(space, pinned={**ONE_EACH, **space.pinned})
        return replace(
            space,
            pinned={**self.pinned, **space.pinned},
            uneven_splits=space.uneven_splits and self.uneven_splits,
            recompute=tuple(kind for kind in space.recompute if kind in self.recompute),
        )


FORMATS = {
    "megatron": Format(write=emit_megatron, framework="megatron"),
    "ms-swift": Format(write=emit_ms_swift, framework="ms-swift"),
    "deepspeed": Format(write=emit_deepspeed, framework="deepspeed", pinned=ONE_EACH),
    "accelerate": Format(
        write=emit_accelerate,
        framework="megatron",
        pinned={"vp": 1, "cp": 1},
        uneven_splits=False,
        recompute=("selective", "full/uniform", "full/block"),
    ),
}


def format_named(name: str) -> Format:
    """Return a format by its name."""
    if name not in FORMATS:
        raise UnknownNameError("format", name, FORMATS)
    return FORMATS[name]
