"""The bounds of a search for layouts, and what each framework supports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from zenith_tune.errors import UnknownNameError
from zenith_tune.layouts.layout import RECOMPUTE_NAMES, SCHEDULES

SPACES = ("default", "all")
MAX_LAID_OUT = 8
"""Largest number of chunks per rank of a laid-out pipeline that is always tried; beyond, only powers of two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """The bounds of a search, inside which every divisor is tried."""

    max_tp: int = 64
    max_pp: int | None = None
    max_cp: int = 64
    max_mbs: int | None = None
    max_block_steps: int = 8
    """Largest number of evenly spread layer counts tried for block recomputation; the best are refined."""
    without_sequence_parallel: bool = False
    unfused_attention: bool = False
    plain_optimizer: bool = False
    """Whether an unsharded optimizer is tried where it can be sharded."""
    wide_experts: bool = False
    """Whether every etp is tried, not only 1 and tp."""
    uneven_splits: bool = True
    """Whether accounted and laid-out pipelines are tried."""
    recompute: tuple[str, ...] = RECOMPUTE_NAMES
    pinned: Mapping[str, int | str] = field(default_factory=dict)
    """Given values by name; the others are searched."""

    @classmethod
    def named(
        cls, name: str, *, max_sizes: Mapping[str, int] | None = None, pinned: Mapping[str, int | str] | None = None
    ) -> SearchSpace:
        """Return the default space, or with `all` the complete one."""
        if name not in SPACES:
            raise UnknownNameError("space", name, SPACES)
        wide = name == "all"
        space = cls(
            without_sequence_parallel=wide,
            unfused_attention=wide,
            plain_optimizer=wide,
            wide_experts=wide,
            pinned=dict(pinned or {}),
        )
        limits: dict[str, Any] = {f"max_{size}": value for size, value in (max_sizes or {}).items()}
        return replace(space, **limits)

    def left_out(self, *, has_experts: bool, layout_strings: bool = False) -> list[str]:
        reasons = []
        if not self.without_sequence_parallel:
            reasons.append("tp without sequence parallelism: it communicates as much and needs more memory")
        if not self.unfused_attention:
            reasons.append("unfused attention: it is slower and keeps the scores")
        if not self.plain_optimizer:
            reasons.append("an optimizer that is not sharded where it can be: it sends no less and keeps more")
        if has_experts and not self.wide_experts:
            reasons.append(
                "etp other than 1 and tp: it lies between these two, or cuts experts with more traffic than ep"
            )
        if layout_strings and self.uneven_splits and "vp" not in self.pinned:
            what = f"vp above {MAX_LAID_OUT} that neither goes evenly nor is a power of two"
            reasons.append(f"{what}: the bubble hardly shrinks any more")
        reasons.append("full recomputation of several layers as one: it frees little more and peaks higher")
        return reasons

    def tries_laid_out(self, vp: int) -> bool:
        """Tell whether laid-out pipelines with `vp` chunks per rank are tried."""
        return self.pinned.get("vp") == vp or vp <= MAX_LAID_OUT or vp & (vp - 1) == 0

    def tensor_within(self, fast_domain: int) -> SearchSpace:
        """Return the space with tensor parallelism limited to the fast domain."""
        return replace(self, max_tp=min(self.max_tp, fast_domain))

    def allows(self, name: str, value: int | str) -> bool:
        """Tell whether a value is inside the bounds and not pinned to another."""
        if name in self.pinned:
            return self.pinned[name] == value
        bound = {"tp": self.max_tp, "pp": self.max_pp, "cp": self.max_cp, "mbs": self.max_mbs}.get(name)
        return bound is None or int(value) <= bound


SIZES = ("tp", "pp", "vp", "cp", "ep", "etp")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkLimits:
    """What a framework supports in addition to data parallelism."""

    sizes: tuple[str, ...] = SIZES
    """The parallel sizes that may exceed 1."""
    zero_stages: tuple[int, ...] = (0, 1)
    recompute: tuple[str, ...] = RECOMPUTE_NAMES
    layout_strings: bool = False
    """Whether it supports laid-out pipelines."""
    schedules: tuple[str, ...] = SCHEDULES[:1]


_WHOLE_LAYERS = ("none", "full/uniform")
_FSDP = FrameworkLimits(sizes=("tp", "cp"), zero_stages=(0, 2, 3), recompute=_WHOLE_LAYERS)
_TITAN = FrameworkLimits(
    sizes=("tp", "pp", "vp", "cp", "ep"),
    zero_stages=(0, 1, 2, 3),
    recompute=("none", "selective", "full/uniform"),
    schedules=("1f1b", "gpipe"),
)
_TITAN_EAGER = replace(_TITAN, schedules=SCHEDULES)
LIMITS = {
    **dict.fromkeys(("megatron", "megatron-local", "megatron-ci"), FrameworkLimits(layout_strings=True)),
    "deepspeed": FrameworkLimits(sizes=(), zero_stages=(0, 1, 2, 3), recompute=_WHOLE_LAYERS),
    "hf-accelerate": FrameworkLimits(sizes=(), zero_stages=(0,), recompute=_WHOLE_LAYERS),
    "fsdp": _FSDP,
    **dict.fromkeys(("torchtitan", "torchtitan-compiled"), _TITAN),
    # PyTorch refuses to split the backward pass of compiled modules.
    **dict.fromkeys(("torchtitan-eager", "torchtitan-autocast"), _TITAN_EAGER),
    "llm-foundry": _FSDP,
    "jax": _FSDP,
}
"""Limits by framework; an unknown one is taken to be like older versions of Megatron."""


def limits_of(framework: str) -> FrameworkLimits:
    """Return what a framework supports; an unknown one is taken to be like Megatron."""
    return LIMITS.get(framework, FrameworkLimits())
