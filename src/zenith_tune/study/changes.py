"""What the best point of a study has in place of the user's own command, and what that brought."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from zenith_tune.study.parameters import Value
from zenith_tune.study.study import Study

NAMES = {
    "tp": "TP",
    "pp": "PP",
    "cp": "CP",
    "ep": "EP",
    "etp": "ETP",
    "mbs": "micro-batch",
    "vp": "virtual stages",
    "zero": "ZeRO",
    "zero_stage": "ZeRO stage",
    "sequence_parallel": "sequence parallelism",
    "recompute": "recomputation",
}
"""Parameters as people call them; the others go by their own names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A parameter whose value differs from the one in the user's own command."""

    name: str
    before: Value | None = None
    """None where the command does not have it, or it is not known."""
    after: Value | None = None
    speedup: float | None = None
    """The speedup from all changes of its group: those of the layout, or levers that were turned on at once."""

    @property
    def text(self) -> str:
        """The change in a few words.

        >>> Change(name="tp", before=4, after=1).text, Change(name="manual_gc", after=True).text
        ('TP 4 -> 1', '+ manual_gc')
        """
        name = NAMES.get(self.name, self.name)
        if self.after is True or self.after is False:
            return f"{'+' if self.after else '-'} {name}"
        return f"+ {name}={self.after}" if self.before is None else f"{name} {self.before} -> {self.after}"


def changes_of(study: Study, speedup: float) -> tuple[Change, ...]:
    """Return the changes of a study whose best trial is faster than the user's own command by `speedup`."""
    best, own = study.best, study.own_params or {}
    if best is None:
        return ()
    by_lever = {lever.partition("=")[0]: gain.speedup for gain in study.lever_gains for lever in gain.levers}
    of_layout = speedup / (study.lever_speedup or 1.0)
    return tuple(
        Change(name=name, before=own.get(name), after=value, speedup=by_lever.get(name, of_layout))
        for name, value in best.params.items()
        if name not in own or own[name] != value
    )


def changes_text(changes: Iterable[Change]) -> str:
    """Return changes in one line, each group with what it brought: `TP 4 -> 1, micro-batch 1 -> 4 (1.38x)`."""
    groups = [list(group) for _, group in groupby(changes, key=lambda change: change.speedup)]
    parts = []
    for group in groups:
        gain = f" ({group[0].speedup:.2f}x)" if len(groups) > 1 and group[0].speedup is not None else ""
        parts.append(", ".join(change.text for change in group) + gain)
    return "; ".join(parts)
