"""Which levers of Megatron-LM a layout is offered, how they are written, and what a log says of them."""

from __future__ import annotations

from collections.abc import Mapping

from zenith_tune.presets.levers import excludes, names_on_request, plain_names, set_levers
from zenith_tune.presets.megatron.job import MegatronJob
from zenith_tune.presets.megatron.levers.declaration import MegatronLever, Situation
from zenith_tune.presets.megatron.levers.kernels import HOST_LEVERS, KERNEL_LEVERS, NUMERIC_LEVERS
from zenith_tune.presets.megatron.levers.memory import FULL_SHARDING_LEVERS, MEMORY_LEVERS, MODULE_LEVERS
from zenith_tune.presets.megatron.levers.traffic import DATA_LEVERS, EXPERT_LEVERS
from zenith_tune.presets.megatron.options import RECOMPUTE, Wanted
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


def levers_for(at: Situation, line: ParsedCommand) -> list[MegatronLever]:
    """Return the levers that can be turned on for a layout, besides those that the command has on already."""
    # Full sharding by whatever strategy counts as on.
    sharded = [lever for lever in FULL_SHARDING_LEVERS if at.job.args.has(lever.switch)]
    own = [each for each in LEVERS if each.is_known(at.job) and (each.is_on(at.job) or each in sharded)]
    return [
        lever
        for lever in LEVERS
        if not any(_is_barred(lever, other) for other in own) and lever.is_for(at) and _is_writable(lever, at.job, line)
    ]


def _is_barred(lever: MegatronLever, own: MegatronLever) -> bool:
    """Return whether a lever cannot be set besides one of the command, and neither builds on that nor takes it away.

    Full sharding is never taken away, only what it needs could be.
    """
    takes_away = any(lever.sets.get(option, True) is None for option in own.sets)
    is_replaced = own.sets.keys() <= lever.sets.keys() or takes_away
    return excludes(lever, own) and (own in FULL_SHARDING_LEVERS or not is_replaced)


def _is_writable(lever: MegatronLever, job: MegatronJob, line: ParsedCommand) -> bool:
    """Return whether what it takes away stands in the command itself, not in a script, and alone if it is a switch."""
    valued = RECOMPUTE[:3]  # taken away with their values; the others are switches
    taken = [option for option, value in lever.sets.items() if value is None and job.args.has(option)]
    return all(line.has(option) if option in valued else line.get(option) == "" for option in taken)


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
    return [lever for lever in set_levers(LEVERS, params) if lever.is_known(job)]
