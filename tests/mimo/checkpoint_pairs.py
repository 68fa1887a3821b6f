"""Which layout reads what another wrote: a file is of the model, so that all read two writers and one reads all."""

from __future__ import annotations

from tests.mimo.small_models import CHECKPOINT_LAYOUTS

HUB = "2 ranks"
READ_BY_ALL = (HUB, "colocated tp2 dp4 to tp4 dp2")
"""One writer whose optimizer state is whole, and one whose state is sharded."""

PAIRS = [
    (one, other)
    for one in CHECKPOINT_LAYOUTS
    for other in CHECKPOINT_LAYOUTS
    if other == HUB or one in READ_BY_ALL
]  # fmt: skip


def is_sharded(name: str) -> bool:
    """Return whether a layout's optimizer state is sharded here: some are, so that both ways are crossed."""
    return "dp4" in name
