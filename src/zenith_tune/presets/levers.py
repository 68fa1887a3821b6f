"""Levers: settings beside the layout, which are tried on the layout that won.

A lever is one small declaration of a preset: what it sets, what it cannot go together with, which part of a step it is
expected to save and by whose figures. The tuner tries those that are worth a trial, and keeps what proves faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from zenith_tune.errors import UnknownNameError
from zenith_tune.study.parameters import Value

ALL, NONE = "default", "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """Hold one setting that a point of the search space may be given beside its own."""

    name: str
    """Of the parameter, as it stands beside those of the layout."""
    value: Value = True
    saves: Mapping[str, float] = field(default_factory=dict)
    """Which share of each part of a predicted step it takes away; below 0 where it adds to it."""
    memory: float = 0.0
    """By which share of the peak memory it changes that; below 0 where it frees some."""
    excludes: frozenset[str] = frozenset()
    """Other levers that it cannot go together with."""
    needs: frozenset[str] = frozenset()
    """Other levers that must have been kept before it is tried."""
    is_alone: bool = False
    """Whether it has a trial of its own: it needs what a machine may lack, and would fail the others with it."""
    numerics: bool = False
    """Whether what the model learns may change: such a lever is tried only where it is allowed by name."""
    source: str = ""
    """Whose figures its effect is taken from."""

    @property
    def is_for_memory(self) -> bool:
        """Tell whether it saves no time: it helps where something else does not fit."""
        return self.memory < 0 and not any(share > 0 for share in self.saves.values())

    @property
    def label(self) -> str:
        """Name it, with its value where there are several.

        >>> Lever(name="dispatcher", value="deepep").label, Lever(name="manual_gc").label
        ('dispatcher=deepep', 'manual_gc')
        """
        return self.name if self.value is True else f"{self.name}={self.value}"

    def predicted_gain(self, shares: Mapping[str, float]) -> float:
        """Return which share of a step it is expected to save, given the share of each part.

        >>> Lever(name="tp_overlap", saves={"tp": 0.5}).predicted_gain({"tp": 0.2, "compute": 0.8})
        0.1
        """
        return sum(saved * shares.get(part, 0.0) for part, saved in self.saves.items())


def compatible(levers: Sequence[Lever]) -> list[Lever]:
    """Return those that go together: each that no earlier one excludes, one of each name.

    >>> a, b = Lever(name="a", excludes=frozenset({"b"})), Lever(name="b")
    >>> [lever.name for lever in compatible([a, b, Lever(name="c")])]
    ['a', 'c']
    """
    chosen: list[Lever] = []
    for lever in levers:
        if all(goes_with(lever, other) for other in chosen):
            chosen.append(lever)
    return chosen


def goes_with(lever: Lever, other: Lever) -> bool:
    """Tell whether two levers can be set at once."""
    return lever.name != other.name and lever.name not in other.excludes and other.name not in lever.excludes


def chosen_levers(text: str, known: Sequence[str], what: str) -> frozenset[str]:
    """Return the levers that `text` names, with a plus between them; `default` are all of `known`, `none` is none."""
    names = {name.strip() for name in text.split("+")}
    if names == {NONE}:
        return frozenset()
    for name in names - {ALL}:
        if name not in known:
            raise UnknownNameError(what, name, (*known, ALL, NONE))
    return frozenset(known) if ALL in names else frozenset(names)
