"""Makes the runner that the user names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zenith_tune.constructor_args import construct
from zenith_tune.errors import UsageError
from zenith_tune.registry import RunnerRegistry
from zenith_tune.runners.base import Runner

MAX_PARALLEL = 1000


def check_runner(name: str, args: Mapping[str, Any] | None = None) -> None:
    """Refuse an unknown name, and arguments that the runner does not take, before anything is started."""
    make_runner(name, args).close()


def make_runner(name: str, args: Mapping[str, Any] | None = None) -> Runner:
    """Return a runner by its name; an unknown name or argument is a UsageError that lists the known ones."""
    return construct(RunnerRegistry.get(name), args or {}, f"runner {name}")


def named_runner(
    options: Mapping[str, Any], runner_args: Mapping[str, str], slurm: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    """Return the runner that the options of the command line name, and its arguments.

    --slurm, --ray-address and --hostfile each name a runner by themselves; two that do not agree are refused.
    """
    short: dict[str, tuple[str, dict[str, str]]] = {
        "--slurm": ("slurm", dict(slurm)),
        "--ray-address": ("ray", {"address": options["ray_address"]} if options["ray_address"] else {}),
        "--hostfile": ("hostfile", {"hostfile": options["hostfile"]} if options["hostfile"] else {}),
    }
    given = {option: named for option, named in short.items() if named[1]}
    names = {named for named, _ in given.values()} | ({options["runner"]} if options["runner"] else set())
    if len(names) > 1:
        said = [*given, *(["--runner " + options["runner"]] if options["runner"] else [])]
        raise UsageError(f"trials run in one place, but got {' and '.join(said)}: give one of them")
    args = {name: value for _, pairs in given.values() for name, value in pairs.items()}
    if twice := set(args) & set(runner_args):
        raise UsageError(f"--runner-args gives {min(twice)!r} a second time: give it once")
    return next(iter(names), "local"), {**args, **runner_args}


def parallel_trials(text: str) -> int | None:
    """Read --parallel: a number from 1, or None for `auto`.

    >>> parallel_trials("auto"), parallel_trials("4")
    (None, 4)
    """
    if text == "auto":
        return None
    if not text.isdecimal() or not 0 < int(text[:6]) <= MAX_PARALLEL:
        raise UsageError(f"--parallel must be auto or a number from 1 to {MAX_PARALLEL}, but got {text!r}")
    return int(text)
