"""Which levers of Megatron-LM a layout is offered, how they are written, and what a log says of them."""

from __future__ import annotations

from collections.abc import Mapping

from zenith_tune.presets.levers import names_on_request, plain_names, set_levers
from zenith_tune.presets.megatron_lm.job import MegatronJob
from zenith_tune.presets.megatron_lm.levers.declaration import MegatronLever, Situation
from zenith_tune.presets.megatron_lm.levers.kernels import HOST_LEVERS, KERNEL_LEVERS
from zenith_tune.presets.megatron_lm.levers.memory import FULL_SHARDING_LEVERS, MEMORY_LEVERS
from zenith_tune.presets.megatron_lm.levers.modules import METHOD, MODULE_LEVERS, NUM_LAYERS
from zenith_tune.presets.megatron_lm.levers.numerics import NUMERIC_LEVERS
from zenith_tune.presets.megatron_lm.levers.traffic import DATA_LEVERS, EXPERT_LEVERS
from zenith_tune.presets.megatron_lm.options import OPTIONS, Wanted
from zenith_tune.shell import ParsedCommand
from zenith_tune.study.parameters import Value

LEVERS: tuple[MegatronLever, ...] = (
    *DATA_LEVERS,
    *EXPERT_LEVERS,
    *KERNEL_LEVERS,
    *HOST_LEVERS,
    *MODULE_LEVERS,
    *MEMORY_LEVERS,
    *NUMERIC_LEVERS,
)
NAMES = (*plain_names(LEVERS), *names_on_request(LEVERS))
VALUED = (OPTIONS["recompute_granularity"], METHOD, NUM_LAYERS)
"""Options that levers take away with their values; the others are switches."""


def levers_for(at: Situation, line: ParsedCommand) -> list[MegatronLever]:
    """Return the levers that can be turned on for a layout, beside the full sharding that the command may have."""
    own = [lever for lever in FULL_SHARDING_LEVERS if at.job.args.has(lever.switch)]
    beside = [lever for lever in LEVERS if all(_goes_with(lever, other) for other in own)]
    return [lever for lever in beside if lever.is_for(at) and _is_writable(lever, at.job, line)]


def _goes_with(lever: MegatronLever, other: MegatronLever) -> bool:
    return lever.name != other.name and lever.name not in other.excludes and other.name not in lever.excludes


def _is_writable(lever: MegatronLever, job: MegatronJob, line: ParsedCommand) -> bool:
    """Tell whether what it takes away stands in the command itself and not in a script, alone where it is a switch."""
    taken = [option for option, value in lever.sets.items() if value is None and job.args.has(option)]
    return all(line.has(option) if option in VALUED else line.get(option) == "" for option in taken)


def lever_options(job: MegatronJob, params: Mapping[str, Value]) -> Wanted:
    """Return the options of the levers of a point."""
    wanted: Wanted = {}
    for lever in _set(job, params):
        wanted |= lever.sets
    return wanted


def logged_levers(job: MegatronJob, params: Mapping[str, Value]) -> dict[str, Value]:
    """Return what the dump of a run's arguments says of the levers of a point."""
    return {name: value for lever in _set(job, params) for name, value in lever.logged.items()}


def _set(job: MegatronJob, params: Mapping[str, Value]) -> list[MegatronLever]:
    release = job.features.release
    return [lever for lever in set_levers(LEVERS, params) if lever.first <= release <= lever.last]
