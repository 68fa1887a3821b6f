"""What a GPU keeps for a model under ZeRO: weights, gradients, optimizer states, and the buffers of the communication.

Legend: P parameters, N data-parallel ranks, w, g, o bytes per parameter of weights, gradients and optimizer states.

In 16-bit precision, bf16 and fp16 alike, w = 2, g = 2 and o = 16 (fp32 master copy, momentum, variance and the copy in
half precision); in fp32 w = 4, g = 4, o = 8. Stage 1 divides o by N, stage 2 also g, stage 3 also w (Rajbhandari et al.
2020, arXiv 1910.02054, figure 1; the bytes are those that DeepSpeed's autotuner counts). Buffers are those that
runtime/zero/stage_1_and_2.py and stage3.py of DeepSpeed 0.19 allocate.
"""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.units import format_bytes

HALF, SINGLE = 2, 4
STATE_BYTES = {HALF: (2, 2, 16), SINGLE: (4, 4, 8)}
"""w, g and o by the bytes of the precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroSetting:
    """Hold what of a configuration decides about memory; sizes of buckets are in elements."""

    stage: int
    num_ranks: int
    num_params: int
    precision_bytes: int = HALF
    gradient_bytes: int | None = None
    """Of the type that gradients are accumulated in, where the configuration names one."""
    offload_optimizer: bool = False
    offload_param: bool = False
    reduce_bucket_size: int = 500_000_000
    overlap_comm: bool | None = None
    """None: as DeepSpeed decides, which is for stage 3 alone."""
    contiguous_gradients: bool = True
    prefetch_bucket_size: int = 50_000_000
    max_live_parameters: int = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Hold bytes per GPU by kind, and how they came about."""

    weights: float
    gradients: float
    optimizer: float
    buffers: float
    arithmetic: str

    @property
    def total(self) -> float:
        """All of it."""
        return self.weights + self.gradients + self.optimizer + self.buffers


def state_bytes(setting: ZeroSetting) -> StateBytes:
    """Return what one GPU keeps whatever the micro-batch.

    >>> seven_billion = ZeroSetting(stage=1, num_ranks=64, num_params=7_500_000_000, reduce_bucket_size=0)
    >>> [round(part / 1e9, 1) for part in (state_bytes(seven_billion).weights, state_bytes(seven_billion).optimizer)]
    [15.0, 1.9]
    """
    w, g, o = per_parameter(setting)
    stage, whole, shard = setting.stage, setting.num_params, setting.num_params / setting.num_ranks
    weights = w * (shard if stage >= 3 else whole)
    # With the optimizer in host memory, gradients go there as soon as they are reduced.
    gradients = 0.0 if _keeps_no_gradients(setting) else g * (shard if stage >= 2 else whole)
    optimizer = 0.0 if setting.offload_optimizer and stage >= 1 else o * (shard if stage >= 1 else whole)
    return StateBytes(
        weights=0.0 if setting.offload_param and stage >= 3 else weights,
        gradients=gradients,
        optimizer=optimizer,
        buffers=_buffers(setting, w),
        arithmetic=_arithmetic(setting, w, g, o),
    )


def per_parameter(setting: ZeroSetting) -> tuple[int, int, int]:
    """Return w, g and o."""
    w, g, o = STATE_BYTES[setting.precision_bytes]
    return w, setting.gradient_bytes or g, o


def shown(states: StateBytes, activations: str) -> str:
    """Return the sum in words, as short as a table's cell wants it; `activations` are told by who knows them."""
    buffers = [f"buffers {format_bytes(states.buffers)}"] if states.buffers else []
    return "; ".join([states.arithmetic, activations, *buffers])


def _keeps_no_gradients(setting: ZeroSetting) -> bool:
    return setting.offload_optimizer and setting.stage >= 2


def _buffers(setting: ZeroSetting, weight_bytes: int) -> float:
    """Return the buckets that gradients are reduced in, two where that overlaps, and what stage 3 gathers."""
    if setting.stage == 0:
        return 0.0
    overlaps = setting.stage == 3 if setting.overlap_comm is None else setting.overlap_comm
    num_buckets = 2 if overlaps and setting.contiguous_gradients and setting.stage < 3 else 1
    buckets = float(num_buckets * setting.reduce_bucket_size * setting.precision_bytes)
    if setting.stage < 3:
        return buckets
    gathered = min(setting.num_params, setting.max_live_parameters + setting.prefetch_bucket_size)
    return buckets + float(weight_bytes * gathered)


def _arithmetic(setting: ZeroSetting, w: int, g: int, o: int) -> str:
    """Say which bytes are divided by the ranks, and which are in host memory."""
    stage, ranks = setting.stage, setting.num_ranks
    shares = {"weights": (w, 3), "gradients": (g, 2), "optimizer": (o, 1)}
    terms = [f"{size}/{ranks}" if stage >= first and ranks > 1 else str(size) for size, first in shares.values()]
    hosts = [name for name, is_there in _offloaded(setting).items() if is_there]
    host = f", {' and '.join(hosts)} in host memory" if hosts else ""
    return f"{setting.num_params / 1e9:.3g}e9 parameters x ({' + '.join(terms)}) bytes at stage {stage}{host}"


def _offloaded(setting: ZeroSetting) -> dict[str, bool]:
    return {
        "optimizer": setting.offload_optimizer and setting.stage >= 1,
        "weights": setting.offload_param and setting.stage >= 3,
    }
