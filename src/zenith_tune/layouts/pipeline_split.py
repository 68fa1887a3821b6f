"""How the layers of a model are cut into the chunks of a pipeline.

Legend: l layers; pp pipeline ranks of vp chunks each.

Two splits are planned for. The even one gives each chunk l/(pp*vp) layers. The accounted one counts the embedding and
the loss as a layer each, so that the first and the last chunk have one layer fewer: Llama-3 405B, 126 layers over 16
ranks, (126 + 2)/16 = 8 (Megatron's --account-for-embedding-in-pipeline-split and --account-for-loss-in-pipeline-split).
An even split wins where both go. Other splits (--decoder-first-pipeline-num-layers, layout strings) are not planned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zenith_tune.layouts.layout_batch import BoolArray, IntArray

ACCOUNTED = 2
"""Units that the accounted split adds: the embedding and the loss."""


def is_even(num_layers: int, *, pp: int, vp: int) -> bool:
    """Tell whether every chunk gets the same number of layers."""
    return num_layers % (pp * vp) == 0


def is_accounted(num_layers: int, *, pp: int, vp: int) -> bool:
    """Tell whether the layers go only with embedding and loss counted as one each, and leave none empty.

    >>> is_accounted(126, pp=16, vp=1), is_accounted(80, pp=16, vp=1)
    (True, False)
    """
    chunks, units = pp * vp, num_layers + ACCOUNTED
    return pp > 1 and not is_even(num_layers, pp=pp, vp=vp) and units % chunks == 0 and units // chunks > 1


def layers_per_chunk(num_layers: int, *, pp: int, vp: int) -> int:
    """Return the layers of the fullest chunk; at least 1.

    >>> layers_per_chunk(126, pp=16, vp=1), layers_per_chunk(80, pp=4, vp=5)
    (8, 4)
    """
    if is_accounted(num_layers, pp=pp, vp=vp):
        return (num_layers + ACCOUNTED) // (pp * vp)
    return -(-num_layers // (pp * vp))


def even_splits(num_layers: int, pp: IntArray, vp: IntArray) -> BoolArray:
    """Tell of many layouts whether every chunk gets the same number of layers."""
    even: BoolArray = num_layers % (pp * vp) == 0
    return even


def accounted_splits(num_layers: int, pp: IntArray, vp: IntArray) -> BoolArray:
    """Tell of many layouts whether the layers go only with embedding and loss counted."""
    chunks, units = pp * vp, num_layers + ACCOUNTED
    accounted: BoolArray = (pp > 1) & ~even_splits(num_layers, pp, vp) & (units % chunks == 0) & (units // chunks > 1)
    return accounted


def chunk_layers(num_layers: int, pp: IntArray, vp: IntArray) -> IntArray:
    """Return the layers of the fullest chunk of many layouts."""
    units = num_layers + ACCOUNTED * accounted_splits(num_layers, pp, vp)
    layers: IntArray = -(-units // (pp * vp))
    return layers
