"""Which layout reads what another wrote: a file is of the model, so that all read one writer and one reads all."""

from __future__ import annotations

from tests.mimo.small_models import CHECKPOINT_LAYOUTS, LAYOUTS

HUB = "2 ranks"
READ_BY_ALL = "colocated tp2 dp4 to tp4 dp2"
"""Its optimizer state is sharded; that of the hub, which is whole, is read on up to four ranks."""

PAIRS = [
    (one, other)
    for one in CHECKPOINT_LAYOUTS
    for other in CHECKPOINT_LAYOUTS
    if other == HUB or one == READ_BY_ALL or (one == HUB and LAYOUTS[other][1].world_size <= 4)
]  # fmt: skip


def is_sharded(name: str) -> bool:
    """Return whether a layout's optimizer state is sharded here: some are, so that both ways are crossed."""
    return "dp4" in name
