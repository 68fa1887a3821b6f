"""Which layouts a framework can run at all."""

from __future__ import annotations

from dataclasses import dataclass

SIZES = ("tp", "pp", "vp", "cp", "ep", "etp")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkLimits:
    """Hold what a framework offers beside data parallelism."""

    sizes: tuple[str, ...] = SIZES
    """The parallel sizes that may exceed 1."""
    zero_stages: tuple[int, ...] = (0, 1)
    recompute: tuple[str, ...] = ("none", "selective", "full/uniform", "full/block")
    layout_strings: bool = False
    """Whether it takes a pipeline that is written down chunk by chunk."""


_WHOLE_LAYERS = ("none", "full/uniform")
_KIN = FrameworkLimits()
_FSDP = FrameworkLimits(sizes=("tp", "cp"), zero_stages=(0, 2, 3), recompute=_WHOLE_LAYERS)
_CORE = ("megatron", "megatron-local", "megatron-ci")
LIMITS = {
    **dict.fromkeys(_CORE, FrameworkLimits(layout_strings=True)),
    "deepspeed": FrameworkLimits(sizes=(), zero_stages=(0, 1, 2, 3), recompute=_WHOLE_LAYERS),
    "hf-accelerate": FrameworkLimits(sizes=(), zero_stages=(0,), recompute=_WHOLE_LAYERS),
    "fsdp": _FSDP,
    "llm-foundry": _FSDP,
    "jax": _FSDP,
}
"""By framework; whatever is not named here is one of Megatron's kin, without what only its present version has."""


def limits_of(framework: str) -> FrameworkLimits:
    """Return what a framework offers; one that is not known is taken for Megatron's kin.

    >>> limits_of("deepspeed").sizes, limits_of("nanotron").zero_stages
    ((), (0, 1))
    """
    return LIMITS.get(framework, _KIN)


def check_size(name: str, size: int, *, framework: str) -> str | None:
    """Check that the framework can cut this way."""
    if size == 1 or name in limits_of(framework).sizes:
        return None
    return f"{name} must be 1 with {framework}, but got {size}"


def check_recompute(recompute: str, *, framework: str) -> str | None:
    """Check that the framework can recompute this way."""
    known = limits_of(framework).recompute
    return None if recompute in known else f"recompute must be {' or '.join(known)} with {framework}, not {recompute}"
