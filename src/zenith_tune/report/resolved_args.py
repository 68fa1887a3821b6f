"""A preset's arguments as they took effect: those that were given, and the defaults of the others."""

from __future__ import annotations

import inspect

from zenith_tune.record.restored_preset import RemadePreset


def resolved_args(remade: RemadePreset) -> dict[str, str]:
    """Return every argument that has a value, spelled as a header spells it; only those given where no preset is."""
    given = remade.header.args
    if remade.preset is None:
        return dict(given)
    named = inspect.signature(type(remade.preset)).parameters.values()
    silent = (inspect.Parameter.empty, None)
    defaults = {each.name: str(each.default) for each in named if each.default not in silent}
    return {**defaults, **given}
