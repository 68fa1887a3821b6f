"""How the modules' optimizers update their weights."""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.errors import UsageError

_LARGEST = 1e30
"""Products with more than that leave single precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW, clipping, and the sharding of its state; the same for every module."""

    lr: float = 1e-3
    weight_decay: float = 0.01
    """Of matrices; vectors are not decayed."""
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip_grad: float = 1.0
    """The largest global norm; 0 to leave gradients as they are."""
    use_distributed_optimizer: bool = False
    """Share each module's optimizer state out to its data-parallel ranks (ZeRO-1)."""
    num_distributed_optimizer_instances: int = 1
    loss_scale: float = 1.0
    """What the loss is multiplied with before backward."""
    log_num_zeros_in_grad: bool = False

    def __post_init__(self) -> None:
        for name in ("lr", "weight_decay", "eps", "clip_grad"):
            value: float = getattr(self, name)
            if not 0 <= value <= _LARGEST:
                raise UsageError(f"{name} must be 0 to {_LARGEST:g}, but got {value:g}: correct it.")
