"""Lists in a DeepSpeed configuration: each is an axis, and a trial's own configuration has one value of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from zenith_tune.errors import UsageError
from zenith_tune.strategies.zero_progressive.axes import AXES, STAGES, ZeroAxis
from zenith_tune.strategies.zero_progressive.ds_config import (
    ACCUMULATION,
    BATCH,
    MICRO_BATCH,
    SECTIONS,
    STAGE,
    DsConfig,
    Keys,
    shown_json,
    shown_keys,
)
from zenith_tune.study.parameters import Value

PLAIN_LISTS = ("leaf_module", "zenflow")
"""Parts of these sections in which lists are meant as lists."""
ALL = "all"
"""What DeepSpeed's autotuner takes for every stage."""


def listed_axes(config: DsConfig) -> dict[str, ZeroAxis]:
    """Return the lists other than those of the stage and of the batch, by the name that a point has for each.

    >>> config = DsConfig(values={"zero_optimization": {"overlap_comm": [True, False]}, "optimizer": {"betas": [0, 1]}})
    >>> listed_axes(config)["overlap_comm"].choices
    (True, False)
    """
    refuse_listed_batch(config)
    found = {keys: values for keys, values in _lists(config) if keys not in (STAGE, MICRO_BATCH)}
    num_lists = Counter(keys[-1] for keys in found)
    names = {keys: _name(keys, num_lists[keys[-1]]) for keys in found}
    return {names[keys]: _axis(names[keys], keys, _checked(config, keys, values)) for keys, values in found.items()}


def refuse_listed_batch(config: DsConfig) -> None:
    """Refuse a list where the global batch, which stays the same, or what follows from it belongs."""
    for keys in (BATCH, ACCUMULATION):
        if isinstance(value := config.get(keys), list):
            problem = (
                f"{keys[0]} must be one number, because the global batch is fixed and accumulation follows from it"
            )
            raise UsageError(
                f"{config.source}: {problem}, but got {shown_json(value)}", hint="write one number, or leave it out"
            )


def listed_stages(config: DsConfig) -> tuple[int, ...] | None:
    """Return the stages that a list or "all" names, in order; None where the configuration has no such list."""
    value = config.get(STAGE)
    if value == ALL:
        return STAGES
    if not isinstance(value, list):
        if value is not None and (type(value) is not int or value not in STAGES):
            raise _bad_stage(config, value)
        return None
    if not value or any(type(stage) is not int or stage not in STAGES for stage in value):
        raise _bad_stage(config, value)
    return tuple(sorted(set(value)))


def listed_micro_batches(config: DsConfig) -> tuple[int, ...] | None:
    """Return the micro-batches that a list names, ascending; None where there is no list."""
    value = config.get(MICRO_BATCH)
    if not isinstance(value, list):
        return None
    if not value or any(type(size) is not int or size < 1 for size in value):
        problem = f"{MICRO_BATCH[0]} must list whole numbers from 1"
        raise UsageError(f"{config.source}: {problem}, but got {shown_json(value)}: correct it")
    return tuple(sorted(set(value)))


def _lists(config: DsConfig) -> Iterator[tuple[Keys, list[Any]]]:
    # In other sections, such as the optimizer's betas, a list may be what DeepSpeed wants.
    for key, value in config.values.items():
        if isinstance(value, list):
            yield (key,), value
        elif key in SECTIONS and isinstance(value, dict):
            yield from _lists_in(value, (key,))


def _lists_in(section: dict[str, Any], at: Keys) -> Iterator[tuple[Keys, list[Any]]]:
    for key, value in section.items():
        if key in PLAIN_LISTS:
            continue
        if isinstance(value, list):
            yield (*at, key), value
        elif isinstance(value, dict):
            yield from _lists_in(value, (*at, key))


def _name(keys: Keys, num_lists: int) -> str:
    """Return the last key, with those before it where several lists have the same."""
    is_unique = num_lists == 1 and keys[-1] not in ("stage", "mbs")
    return keys[-1] if is_unique else ".".join(keys)


def _axis(name: str, keys: Keys, choices: tuple[Value, ...]) -> ZeroAxis:
    known = AXES.get(name)
    if known is None or known.keys != keys:
        return ZeroAxis(keys=keys, choices=choices)
    return ZeroAxis(keys=keys, choices=choices, first_stage=known.first_stage, last_stage=known.last_stage)


def _checked(config: DsConfig, keys: Keys, values: list[Any]) -> tuple[Value, ...]:
    plain = [int(value) if isinstance(value, float) and value.is_integer() else value for value in values]
    if not plain or any(not isinstance(value, bool | int | float | str) for value in plain):
        problem = f"{shown_keys(keys)} must list numbers, words or true and false"
        raise UsageError(f"{config.source}: {problem}, but got {shown_json(values)}: correct it")
    different = {(type(value), value): value for value in plain}
    written: dict[str, Any] = {}
    for value in different.values():
        # True and 1 are one key of a search, and 1 and "1" are one word in every table.
        word = str(int(value) if isinstance(value, bool) and _has_numbers(plain) else value)
        if word in written:
            problem = f"{shown_keys(keys)} must list values that differ"
            pair = f"{shown_json(written[word])} and {shown_json(value)}"
            raise UsageError(f"{config.source}: {problem}, but {pair} are equal", hint="leave one of them out")
        written[word] = value
    return tuple(different.values())


def _has_numbers(values: list[Any]) -> bool:
    return any(type(value) in (int, float) for value in values)


def _bad_stage(config: DsConfig, value: object) -> UsageError:
    problem = f"zero_optimization.stage must be 0, 1, 2, 3, a list of these or {ALL!r}"
    return UsageError(f"{config.source}: {problem}, but got {shown_json(value)}: correct it")
