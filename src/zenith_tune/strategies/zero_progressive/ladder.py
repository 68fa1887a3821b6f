"""The rungs of a search over ZeRO stages: each saves memory that the one before keeps, and pays for it in time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from zenith_tune.strategies.zero_progressive.axes import AXES, CPU, MEMORY_MODES, matters
from zenith_tune.study.parameters import Params, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """Hold a stage and how it saves memory beside that."""

    stage: int
    modes: Mapping[str, Value]
    base: Params
    """A whole point of it, at the smallest micro-batch."""
    is_lean: bool = False
    """Whether its keys are those that take the least memory."""

    @property
    def name(self) -> str:
        """What a person calls it.

        >>> Rung(stage=2, modes={"offload_optimizer": "cpu"}, base={}).name
        'stage 2, offload_optimizer'
        """
        saving = [name for name, value in self.modes.items() if is_saving(value)]
        return ", ".join([f"stage {self.stage}", *saving, *(["small buffers"] if self.is_lean else [])])

    def at(self, mbs: int, **others: Value) -> Params:
        """Return its point of a micro-batch."""
        return {**self.base, "mbs": mbs, **others}


def is_saving(value: Value) -> bool:
    """Tell whether a mode is one that saves memory."""
    return value is True or value == CPU


def rungs(choices: Mapping[str, tuple[Value, ...]]) -> Iterator[Rung]:
    """Yield the stages in order for each way of saving memory, those that save nothing first.

    A stage whose keys can be set to take less memory comes a second time with these.
    """
    modes = [name for name in MEMORY_MODES if name in choices]
    chosen = [sorted(choices[name], key=is_saving) for name in modes]
    combinations = [dict(zip(modes, values, strict=True)) for values in itertools.product(*chosen)]
    for mode in sorted(combinations, key=_saving_order):
        for stage in sorted(value for value in choices["stage"] if isinstance(value, int)):
            if all(matters(name, stage) or not is_saving(value) for name, value in mode.items()):
                usual = _rung(choices, mode, stage)
                lean = _rung(leanest(choices), mode, stage, idle=choices)
                yield usual
                if lean.base != usual.base:
                    yield replace(lean, is_lean=True)


def _rung(
    choices: Mapping[str, tuple[Value, ...]],
    mode: Mapping[str, Value],
    stage: int,
    idle: Mapping[str, tuple[Value, ...]] | None = None,
) -> Rung:
    """Return a rung with the first choices; keys without effect have those of `idle`: a point has one spelling."""
    first: Params = {name: values[0] for name, values in choices.items()}
    still = {name: values[0] for name, values in (idle or choices).items()}
    wanted = {**first, **mode, "stage": stage, "mbs": min(choices["mbs"])}
    base = {name: value if matters(name, stage) else still[name] for name, value in wanted.items()}
    return Rung(stage=stage, modes={name: value for name, value in mode.items() if matters(name, stage)}, base=base)


def leanest(choices: Mapping[str, tuple[Value, ...]]) -> dict[str, tuple[Value, ...]]:
    """Return the choices with those first that take the least memory: small buckets, and one of them.

    >>> leanest({"reduce_bucket_size": (500, 50), "overlap_comm": (True, False), "mbs": (2, 1)})
    {'reduce_bucket_size': (50, 500), 'overlap_comm': (False, True), 'mbs': (2, 1)}
    """
    lean = {name for name, axis in AXES.items() if name not in MEMORY_MODES and not _is_word(axis.choices[0])}
    return {
        name: tuple(sorted(values)) if name in lean and not any(map(_is_word, values)) else values
        for name, values in choices.items()
    }


def _is_word(value: Value) -> bool:
    return isinstance(value, str)


def _saving_order(mode: Mapping[str, Value]) -> list[bool]:
    # Recomputing costs a third of the time, the host's memory more, and weights in it the most.
    return [is_saving(mode.get(name, False)) for name in reversed(MEMORY_MODES)]
