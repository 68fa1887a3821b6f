"""Between one layout and many: rows of a batch as layouts, and layouts as a batch."""

from __future__ import annotations

from collections.abc import Sequence

from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.layout_batch import RECOMPUTE_NAMES, LayoutBatch

SAME_NAME = ("tp", "pp", "vp", "cp", "ep", "etp", "dp", "zero", "recompute_layers")


def layout_at(batch: LayoutBatch, index: int) -> Layout:
    """Return one row of a batch.

    >>> layout_at(LayoutBatch.of(tp=[1, 2], dp=[8, 4], gbs=16), 1).num_gpus
    8
    """
    sizes = {name: int(getattr(batch, name)[index]) for name in SAME_NAME if name != "dp"}
    return Layout(
        num_gpus=int(batch.num_gpus[index]),
        micro_batch=int(batch.mbs[index]),
        global_batch=int(batch.gbs[index]),
        recompute=RECOMPUTE_NAMES[batch.recompute[index]],
        sequence_parallel=bool(batch.sequence_parallel[index]),
        flash_attention=bool(batch.flash_attention[index]),
        **sizes,
    )


def batch_of(layouts: Sequence[Layout]) -> LayoutBatch:
    """Return layouts as a batch; the ranks of each must be divisible by tp*pp*cp."""
    columns = {name: [getattr(layout, name) for layout in layouts] for name in SAME_NAME}
    return LayoutBatch.of(
        mbs=[layout.micro_batch for layout in layouts],
        gbs=[layout.global_batch for layout in layouts],
        recompute=[RECOMPUTE_NAMES.index(layout.recompute) for layout in layouts],
        sequence_parallel=[layout.sequence_parallel for layout in layouts],
        flash_attention=[layout.flash_attention for layout in layouts],
        **columns,
    )
