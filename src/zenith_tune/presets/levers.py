"""Levers: settings besides the layout, which are tried on the layout that won.

A lever is one small declaration of a preset: what it sets, what it cannot go together with, which part of a step it is
expected to save and by whose figures. The tuner tries those that are worth a trial, and keeps what proves faster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Self, TypeVar

from zenith_tune.errors import UnknownNameError
from zenith_tune.presets.arguments import DEFAULT, NONE
from zenith_tune.study.parameters import CategoricalParameter, Params, Value

ASSUMED = "assumed"
"""The source of an effect without a measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """A setting that a point may be given besides those of the search space."""

    name: str
    """Name of the parameter."""
    value: Value = True
    saves: Mapping[str, float] = field(default_factory=dict)
    """Share of each part of a predicted step that it saves; below 0 where it adds to it."""
    memory: float = 0.0
    """Share by which it changes the peak memory; below 0 where it frees some."""
    excludes: frozenset[str] = frozenset()
    """Other levers that it cannot go together with: by their names, or by their labels where one value is meant."""
    needs: frozenset[str] = frozenset()
    """Other levers that must have been kept before it is tried."""
    is_alone: bool = False
    """Whether it has a trial of its own: it needs what a machine may lack, and would fail the others with it."""
    numerics: bool = False
    """Whether what the model learns may change: such a lever is tried only where it is allowed by name."""
    is_unstable: bool = False
    """Whether the framework itself calls it unfinished: the same holds."""
    is_allowed: bool = False
    missing: str = ""
    """The package that it needs, and the machine that trains does not have."""
    is_unsure: bool = False
    """Whether it is unknown if that machine has the package: it is tried last."""
    is_assumed: bool = False
    """Whether nobody measured its effect."""

    @property
    def is_left_out(self) -> bool:
        """Whether it is not tried, and named alone."""
        return self.is_on_request or bool(self.missing)

    @property
    def why_left_out(self) -> str:
        """Say why it is not tried, and how to have it tried."""
        if self.missing:
            return f"it needs the package {self.missing}, which is not installed where your command runs"
        why = "it changes the numerics" if self.numerics else "the framework calls it unstable"
        return f"{why}: give --allow {self.name}"

    @property
    def is_on_request(self) -> bool:
        """Whether it is not tried because it was not allowed."""
        return (self.numerics or self.is_unstable) and not self.is_allowed

    @property
    def is_for_memory(self) -> bool:
        """Whether it saves no time: it helps where something else does not fit."""
        return self.memory < 0 and not any(share > 0 for share in self.saves.values())

    @property
    def label(self) -> str:
        """Name it, with its value where there are several.

        >>> Lever(name="dispatcher", value="deepep").label, Lever(name="manual_gc").label
        ('dispatcher=deepep', 'manual_gc')
        """
        return lever_label(self.name, self.value)

    def predicted_gain(self, shares: Mapping[str, float]) -> float:
        """Return which share of a step it is expected to save, given the share of each part."""
        return sum(saved * shares.get(part, 0.0) for part, saved in self.saves.items())


def lever_label(name: str, value: Value) -> str:
    """Name a lever as people read it: a switch without its value."""
    return name if value is True else f"{name}={value}"


At = TypeVar("At")
"""What a preset's levers are asked for: a point of a job, and what is known of model and cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The expected effect of a lever on time and memory, in the terms of `Lever`."""

    saves: Mapping[str, float]
    memory: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverDeclaration(Generic[At]):
    """The declaration of a lever; presets add how it is written, and what a log says of it.

    The kind of `At` is written once, at the tuple of a framework's levers: Python 3.11 cannot call a generic class that
    has slots as `LeverDeclaration[At](...)`.
    """

    name: str
    value: Value = True
    goes: Callable[[At], bool] = lambda at: True
    """Whether job and layout have what it needs."""
    saves: Mapping[str, float] = field(default_factory=dict)
    memory: float = 0.0
    memory_at: Callable[[At], float | None] | None = None
    """The memory where it depends on the model; `memory` counts where it is None."""
    effect: Callable[[At], Effect | None] | None = None
    """Both where they depend on the model; None where it cannot be predicted, and the lever is not offered."""
    excludes: frozenset[str] = frozenset()
    needs: Mapping[str, Callable[[At], bool]] = field(default_factory=dict)
    """Other levers that must be on, each with how to tell that the command has it anyway."""
    package: str | None = None
    """Package that the training interpreter must have besides the framework."""
    is_alone: bool = False
    numerics: bool = False
    is_unstable: bool = False
    source: str
    """Whose figures its effect is taken from."""

    @property
    def is_on_request(self) -> bool:
        """Whether it is tried only where it is allowed by name."""
        return self.numerics or self.is_unstable

    @property
    def label(self) -> str:
        """Name it, with its value where there are several."""
        return lever_label(self.name, self.value)

    def lever(self, at: At) -> Lever | None:
        """Return what the tuner needs to know of it; None where its effect cannot be predicted."""
        if self.effect is None:
            memory = self.memory_at(at) if self.memory_at is not None else None
            effect: Effect | None = Effect(saves=self.saves, memory=self.memory if memory is None else memory)
        else:
            effect = self.effect(at)
        if effect is None:
            return None
        return Lever(
            name=self.name,
            value=self.value,
            saves=effect.saves,
            memory=effect.memory,
            excludes=self.excludes,
            needs=frozenset(name for name, is_met in self.needs.items() if not is_met(at)),
            is_alone=self.is_alone,
            numerics=self.numerics,
            is_unstable=self.is_unstable,
            is_assumed=self.source.startswith(ASSUMED),
        )


J = TypeVar("J")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverPoint(Generic[J]):
    """A point of a job that levers are asked for."""

    job: J
    params: Params
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of the environment, by name, as the command has them."""


L = TypeVar("L", bound=LeverDeclaration[Any])
Declared = Sequence[LeverDeclaration[Any]]


def plain_names(declared: Declared) -> tuple[str, ...]:
    """Return the names of the levers that are tried without being asked for, each once."""
    return tuple(dict.fromkeys(lever.name for lever in declared if not lever.is_on_request))


def names_on_request(declared: Declared) -> tuple[str, ...]:
    """Return the names of the levers that are tried where they are allowed alone, each once."""
    return tuple(dict.fromkeys(lever.name for lever in declared if lever.is_on_request))


def lever_parameters(declared: Declared, searched: Collection[str]) -> dict[str, CategoricalParameter]:
    """Return the parameters of the levers, without those that are searched with the layout."""
    values: dict[str, dict[Value, None]] = {}
    for lever in declared:
        values.setdefault(lever.name, {})[lever.value] = None
    return {name: CategoricalParameter(tuple(each)) for name, each in values.items() if name not in searched}


def set_levers(declared: Sequence[L], params: Mapping[str, Value]) -> list[L]:
    """Return the levers that a point has."""
    return [lever for lever in declared if lever.name in params and params[lever.name] == lever.value]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverChoice:
    """The levers that a study may try."""

    plain: frozenset[str]
    allowed: frozenset[str]
    """Those on request that may be tried."""
    names_unallowed: bool
    """Whether the others on request are named too: not where the user wants no levers, or these alone."""

    @classmethod
    def of(cls, levers: str, allow: str, declared: Declared) -> Self:
        """Return what the arguments `levers` and `allow` of a preset name."""
        return cls(
            plain=chosen_levers(levers, plain_names(declared), "lever"),
            allowed=chosen_levers(allow, names_on_request(declared), "--allow name", words=()),
            names_unallowed=DEFAULT in (name.strip() for name in levers.split("+")),
        )

    def offered(
        self, declared: Iterable[LeverDeclaration[At]], at: At, packages: Mapping[str, bool] | None = None
    ) -> list[Lever]:
        """Return those that may be tried, and those that are named because they are not.

        What was allowed has a trial of its own: the report says what it gives. `packages` says which are installed
        and which are not, as far as anybody knows.
        """
        known = self.plain | self.allowed
        wanted = [each for each in declared if each.name in known or (each.is_on_request and self.names_unallowed)]
        levers = [
            lever if each.package is None else _by_package(lever, each.package, packages or {})
            for each in wanted
            if (lever := each.lever(at)) is not None
        ]
        return [
            replace(lever, is_allowed=True, is_alone=True) if lever.name in self.allowed else lever for lever in levers
        ]

    def note(self, declared: Declared, near: Collection[str]) -> list[str]:
        """Return which of the levers in `near` may be tried, in a line."""
        on_request = names_on_request(declared)
        names = (*plain_names(declared), *on_request)
        tried = [name for name in names if name in near and name in self.plain | self.allowed]
        unallowed = [name for name in on_request if name in near and name not in self.allowed]
        if not tried:
            return []
        more = f"; {', '.join(unallowed)} with --allow" if unallowed and self.names_unallowed else ""
        return [f"optional settings to test on the best layout: {', '.join(tried)}{more}"]


def _by_package(lever: Lever, package: str, packages: Mapping[str, bool]) -> Lever:
    if package not in packages:
        return replace(lever, is_unsure=True)
    return lever if packages[package] else replace(lever, missing=package)


def compatible(levers: Sequence[Lever]) -> list[Lever]:
    """Return those that go together: each that no earlier one excludes, one of each name."""
    chosen: list[Lever] = []
    for lever in levers:
        if all(goes_with(lever, other) for other in chosen):
            chosen.append(lever)
    return chosen


def goes_with(lever: Lever, other: Lever) -> bool:
    """Return whether two levers can be set at once."""
    return lever.name != other.name and not excludes(lever, other)


def excludes(lever: Lever | LeverDeclaration[Any], other: Lever | LeverDeclaration[Any]) -> bool:
    """Return whether one of two levers excludes the other, by its name or by its value."""
    names, others = {lever.name, lever.label}, {other.name, other.label}
    return bool(names & other.excludes or others & lever.excludes)


def chosen_levers(text: str, known: Sequence[str], what: str, words: Sequence[str] = (DEFAULT, NONE)) -> frozenset[str]:
    """Return the levers that `text` names, with a plus between them; `default` are all of `known`, `none` is none."""
    names = {name.strip() for name in text.split("+")}
    if names == {NONE}:
        return frozenset()
    for name in names - {DEFAULT}:
        if name not in known:
            raise UnknownNameError(what, name, (*known, *words))
    return frozenset(known) if DEFAULT in names else frozenset(names)
