"""Which levers of DeepSpeed a point is offered, how they are written, and what a log says of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from zenith_tune.presets.deepspeed.levers.declaration import DeepSpeedLever, ZeroSituation
from zenith_tune.presets.deepspeed.levers.sharded import SHARDED_LEVERS
from zenith_tune.presets.deepspeed.levers.traffic import TRAFFIC_LEVERS
from zenith_tune.presets.levers import set_levers
from zenith_tune.strategies.zero_progressive.ds_config import Keys
from zenith_tune.study.parameters import Value

LEVERS: tuple[DeepSpeedLever, ...] = (*TRAFFIC_LEVERS, *SHARDED_LEVERS)


def levers_for(at: ZeroSituation, searched: Collection[Keys] = ()) -> list[DeepSpeedLever]:
    """Return the levers that can be turned on for a point, without keys that are searched with it."""
    return [lever for lever in LEVERS if lever.sets.keys().isdisjoint(searched) and lever.is_for(at)]


def lever_settings(levers: Mapping[str, Value]) -> dict[Keys, Value]:
    """Return what levers set in the configuration."""
    return {keys: value for lever in set_levers(LEVERS, levers) for keys, value in lever.sets.items()}


def logged_levers(levers: Mapping[str, Value]) -> dict[str, Value]:
    """Return what the dump of a run's configuration says of levers."""
    return {name: value for lever in set_levers(LEVERS, levers) for name, value in lever.logged.items()}
