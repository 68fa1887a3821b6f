"""How a run became known: what the user said of it, what its file leaves out, and who writes its layouts down."""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.layouts.layout import Layout
from zenith_tune.presets.unasked_size import UnaskedSize


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrigin:
    """Hold what the layout itself does not tell."""

    model: str = ""
    """The model as the user named it by `model=`; empty: the command or the log tells it."""
    cluster: str = ""
    """The cluster as the user named it; empty: it is this machine."""
    emit: str = ""
    """The format of `plan --emit` that writes a layout for what runs it; empty: there is none."""
    unasked: tuple[UnaskedSize, ...] = ()
    """Sizes that the run has because nobody said otherwise."""
    tried: frozenset[Layout] = frozenset()
    """What else its study has run: that is known, and no advice."""
