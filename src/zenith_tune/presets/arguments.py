"""The arguments that presets take: the axes that `search` lists, and what sizes and steps may be."""

from __future__ import annotations

from collections.abc import Mapping

from zenith_tune.errors import UnknownNameError, UsageError

DEFAULT = "default"
"""What `search` and `levers` are unless the user says otherwise."""
MOST = 2**31
MOST_STEPS = 10_000


def chosen_axes(search: str, known: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Return the axes that `search` lists, with a plus between them; a name may stand for several.

    >>> sorted(chosen_axes("default+tp", {"default": ("stage", "mbs"), "tp": ("tp",)}))
    ['mbs', 'stage', 'tp']
    """
    names: set[str] = set()
    for name in filter(None, (part.strip() for part in search.split("+"))):
        if name not in known:
            raise UnknownNameError("axis", name, known)
        names.update(known[name])
    if not names:
        raise UsageError("search must name an axis, but is empty", hint=f"give search={DEFAULT}")
    return names


def refuse_sizes(**sizes: int | None) -> None:
    """Refuse a size that no job has; None leaves it to the command."""
    for name, value in sizes.items():
        if value is not None and not 1 <= value <= MOST:
            raise UsageError(f"{name} must be from 1 to {MOST}, but got {value}", hint=f"correct it, e.g. {name}=1")


def refuse_steps(steps: int) -> None:
    """Refuse trials of too few steps to measure, or of more than any needs."""
    if not 3 <= steps <= MOST_STEPS:
        raise UsageError(f"steps must be from 3 to {MOST_STEPS}, but got {steps}", hint="give steps=20")
