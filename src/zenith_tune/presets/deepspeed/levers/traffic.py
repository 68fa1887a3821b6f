"""Levers of the gradients' and weights' traffic at every stage.

They are tried without a known model too: each is off by DeepSpeed's default or by the user's file, and is generally
right with several ranks.
"""

from __future__ import annotations

from collections.abc import Callable

from zenith_tune.presets.deepspeed.levers.declaration import OPTIMIZER, OVERLAP, DeepSpeedLever, ZeroSituation, zero
from zenith_tune.presets.levers import ASSUMED, Effect

REDUCE, GATHER = "reduce_bucket_size", "allgather_bucket_size"
SMALL, MIDDLE, LARGE = 50_000_000, 200_000_000, 500_000_000
BEHIND = f"{ASSUMED}: the backward pass hides what is reduced during it"
COUNTED_BUCKETS = "counted: the last bucket is reduced after the backward pass, and a model below one has no other"


def has_replicas(at: ZeroSituation) -> bool:
    """Tell whether gradients are reduced over several ranks."""
    return at.num_ranks > 1


def _overlaps(at: ZeroSituation) -> bool:
    return at.own(OVERLAP) is True


def _scatters(at: ZeroSituation) -> bool:
    """Tell whether gradients are averaged as reduce-scatter has it."""
    predivide = at.config.get(("gradient_predivide_factor",))
    return has_replicas(at) and predivide in (None, 1) and not at.config.flag(("prescale_gradients",))


def is_below(name: str, value: int) -> Callable[[ZeroSituation], bool]:
    """Tell whether a size is smaller than a value, or left to the Trainer, which takes small ones."""
    return lambda at: has_replicas(at) and (at.own(zero(name)) or 0) < value


def _is_above(name: str, value: int) -> Callable[[ZeroSituation], bool]:
    return lambda at: has_replicas(at) and (at.own(zero(name)) or 0) > value


def smaller_bucket(value: int) -> Callable[[ZeroSituation], Effect]:
    """Return what smaller buckets save of an overlapped reduction: all but the last of them are hidden."""

    def effect(at: ZeroSituation) -> Effect:
        own, params = int(at.own(zero(REDUCE)) or value), at.num_params
        saved = (min(own, params) - min(value, params)) / params if params else 0.05
        return Effect(saves={"dp": saved}, memory=at.memory_with(REDUCE, value) or 0.0)

    return effect


def _small(value: int) -> DeepSpeedLever:
    return DeepSpeedLever(
        name=REDUCE,
        value=value,
        sets={zero(REDUCE): value},
        stages=(1, 2, 3),
        goes=_is_above(REDUCE, value),
        needs={"overlap_comm": _overlaps},
        effect=smaller_bucket(value),
        source=COUNTED_BUCKETS,
    )


TRAFFIC_LEVERS = (
    DeepSpeedLever(
        name="overlap_comm",
        sets={OVERLAP: True},
        stages=(1, 2, 3),
        goes=has_replicas,
        saves={"dp": 0.6},
        memory_at=lambda at: at.memory_with("overlap_comm", True),
        memory=0.03,
        source=BEHIND,
    ),
    DeepSpeedLever(
        name="contiguous_gradients",
        sets={zero("contiguous_gradients"): True},
        stages=(1, 2, 3),
        goes=has_replicas,
        saves={"dp": 0.03},
        memory_at=lambda at: at.memory_with("contiguous_gradients", True),
        memory=0.03,
        source=f"{ASSUMED}; DeepSpeed has it on, so that gradients do not split the memory into pieces",
    ),
    DeepSpeedLever(
        name="reduce_scatter",
        sets={zero("reduce_scatter"): True},
        stages=(2,),
        goes=_scatters,
        saves={"dp": 0.3},
        source="counted: an all-reduce is two reduce-scatters, beside one gather of the weights",
    ),
    DeepSpeedLever(
        name="allgather_partitions",
        sets={zero("allgather_partitions"): True},
        stages=(1, 2),
        goes=has_replicas,
        saves={"dp": 0.1},
        source=f"{ASSUMED}: one gather in place of a broadcast from each rank",
    ),
    _small(SMALL),
    _small(MIDDLE),
    DeepSpeedLever(
        name=REDUCE,
        value=LARGE,
        sets={zero(REDUCE): LARGE},
        stages=(1, 2, 3),
        goes=is_below(REDUCE, LARGE),
        saves={"dp": 0.03},
        memory_at=lambda at: at.memory_with(REDUCE, LARGE),
        memory=0.03,
        source=f"{ASSUMED}: fewer messages, at DeepSpeed's own size",
    ),
    DeepSpeedLever(
        name=GATHER,
        value=LARGE,
        sets={zero(GATHER): LARGE},
        stages=(1, 2),
        goes=is_below(GATHER, LARGE),
        saves={"dp": 0.03},
        memory=0.01,
        source=f"{ASSUMED}: fewer messages, at DeepSpeed's own size",
    ),
    DeepSpeedLever(
        name="round_robin_gradients",
        sets={zero("round_robin_gradients"): True},
        stages=(1, 2),
        goes=lambda at: has_replicas(at) and at.is_offloaded(OPTIMIZER),
        saves={"optimizer": 5.0},
        source=f"{ASSUMED}: ranks copy gradients to the host side by side, beside an optimizer 60 times as slow there",
    ),
    DeepSpeedLever(
        name="communication_data_type",
        value="bf16",
        sets={("communication_data_type",): "bf16"},
        stages=(0, 1, 2, 3),
        goes=lambda at: has_replicas(at) and at.own(("communication_data_type",)) in _single(at),
        dumped={"communication_data_type": "torch.bfloat16"},
        saves={"dp": 0.3},
        numerics=True,
        source="counted: gradients of 2 in place of 4 bytes, which are two thirds of the traffic",
    ),
)


def _single(at: ZeroSituation) -> tuple[str | None, ...]:
    """Return the types of communication that have four bytes: where none is named, it follows the precision."""
    return ("fp32", None) if at.precision == "fp32" else ("fp32",)
