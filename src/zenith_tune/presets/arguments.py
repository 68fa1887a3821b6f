"""The arguments that presets take: those of every framework, and what axes, sizes and steps may be."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.study.parameters import Value

DEFAULT = "default"
"""What `search` and `levers` are unless the user says otherwise."""
NONE = "none"
MOST = 2**31
MOST_STEPS = 10_000


@dataclass(frozen=True, kw_only=True)
class JobOverrides:
    """What the user says of the job besides the command; None leaves it to the command, its files and its run."""

    n_gpus: int | None = None
    model: str | None = None


@dataclass(frozen=True, kw_only=True)
class FrameworkArguments(JobOverrides):
    """What the preset of every framework takes; each adds its own fields, and defaults that differ."""

    cluster: str | None = None
    """The GPUs: this machine unless named."""
    topology: str | None = None
    """A file with what `nvidia-smi topo -m` says of each machine."""
    search: str = DEFAULT
    """Axes with a plus between them."""
    levers: str = DEFAULT
    """Settings that are tried on the best point: default, none, or names with a plus between them."""
    allow: str = NONE
    """Levers that change the numerics and may be tried."""
    mbs_max: int = 1024
    """The largest micro-batch."""


def chosen_axes(search: str, known: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Return the axes that `search` lists, with a plus between them; a name may stand for several."""
    names: set[str] = set()
    for name in filter(None, (part.strip() for part in search.split("+"))):
        if name not in known:
            raise UnknownNameError("axis", name, known)
        names.update(known[name])
    if not names:
        raise UsageError("search must name an axis, but is empty", hint=f"give search={DEFAULT}")
    return names


def searched_axes(
    search: str, choices: Mapping[str, tuple[Value, ...]], on_request: Collection[str] = ()
) -> dict[str, tuple[Value, ...]]:
    """Return the axes that `search` names with their choices; the others keep the first, which is the job's own.

    Those `on_request` are searched only where they are named.
    """
    default = tuple(name for name in choices if name not in on_request)
    named = chosen_axes(search, {DEFAULT: default, **{name: (name,) for name in choices}})
    return {name: values if name in named else values[:1] for name, values in choices.items()}


def sizes_of(given: Any) -> dict[str, Any]:
    """Return the whole numbers among the arguments of a dataclass, whatever was given for them."""
    return {field.name: getattr(given, field.name) for field in fields(given) if "int" in str(field.type)}


def refuse_sizes(**sizes: int | None) -> None:
    """Refuse a size that no job has; None leaves it to the command."""
    for name, value in sizes.items():
        if value is not None and not (isinstance(value, int) and 1 <= value <= MOST):
            raise UsageError(
                f"{name} must be a whole number from 1 to {MOST}, but got {value!r}", hint=f"correct it, e.g. {name}=1"
            )


def refuse_steps(steps: int) -> None:
    """Refuse trials of too few steps to measure, or of more than any needs."""
    if not 3 <= steps <= MOST_STEPS:
        raise UsageError(f"steps must be from 3 to {MOST_STEPS}, but got {steps}", hint="give steps=20")
