"""What an optimizer keeps beside the weights: tensors of their shapes, its groups of parameters, and its step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from zenith_tune.checkpoint.split_rules import is_expert
from zenith_tune.checkpoint.tensor_view import StoredTensor

MASTER = "param"
"""The weights in the precision that the optimizer computes in."""
MOMENTS = ("exp_avg", "exp_avg_sq")
STEP = "step"
PARAM_GROUPS = "param_groups"
SCALER = "grad_scaler"
SCHEDULER = "opt_param_scheduler"

States = dict[str, dict[str, StoredTensor]]
"""By the kind of state and the name of the weight."""


class LeftOutError(Exception):
    """Raised with the reason for which an optimizer's state cannot be carried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Hold what one optimizer says of its parameters: the settings of each group, and what scales its loss."""

    param_groups: tuple[Mapping[str, Any], ...]
    step: float | None
    """The step of every parameter, where it does not stand in the groups."""
    scaler: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, settings: Any, step: float | None = None, scaler: Any = None) -> Groups:
        """Return the groups of an optimizer's state_dict."""
        if not isinstance(settings, list) or not all(isinstance(group, dict) for group in settings):
            raise LeftOutError("its param_groups are not those of torch")
        plain = tuple({key: each for key, each in group.items() if key != "params"} for group in settings)
        odd = next((key for group in plain for key, each in group.items() if not is_plain(each)), None)
        if odd is not None or not is_plain(scaler):
            raise LeftOutError(f"{odd or SCALER!r} of its groups is no plain value")
        return cls(param_groups=plain, step=step, scaler=scaler)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerState:
    """Hold the state of a whole model as the ranks of a layout hold it."""

    tp: int
    num_stages: int
    states: dict[tuple[int, int], States]
    """By tensor rank and stage, under the names that the weights have there."""
    groups: tuple[Groups, ...]
    """One for all weights, or a second one for experts that are spread over ranks."""
    is_sharded: bool
    """Megatron's distributed optimizer."""
    bucket_numel: int | None = None
    """The elements after which its buffers begin a new bucket."""
    beside: Mapping[str, Any]
    """The learning-rate scheduler."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of tensors for each weight."""
        return tuple(next(iter(self.states.values())))


def is_plain(value: Any) -> bool:
    """Tell whether a value is a number, a word, or a container of such."""
    if isinstance(value, dict):
        return all(is_plain(each) for each in (*value, *value.values()))
    if isinstance(value, list | tuple):
        return all(is_plain(each) for each in value)
    return value is None or isinstance(value, bool | int | float | str)


def scheduler_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the learning-rate scheduler that stands beside an optimizer, where it is plain."""
    found = content.get(SCHEDULER)
    return {SCHEDULER: found} if isinstance(found, dict) and is_plain(found) else {}


def by_optimizer(names: Iterable[str], num_optimizers: int) -> list[list[str]]:
    """Return the weights of each optimizer: the second one, where there are two, is that of the experts."""
    listed = list(names)
    if num_optimizers == 1:
        return [listed]
    return [[name for name in listed if is_expert(name) == experts] for experts in (False, True)]
