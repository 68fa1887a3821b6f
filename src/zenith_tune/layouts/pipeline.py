"""How the layers of a model are split into the chunks of a pipeline.

Legend: l layers; pp pipeline ranks of vp chunks each, n = pp*vp; u = l+2 units, of which the embedding and the loss are
one each.

There are three splits; the first that is possible is taken.

- Even: each chunk has l/n layers.
- Accounted: each chunk has u/n units, so that the first and the last have a layer fewer: Llama-3 405B, 126 layers over
  16 ranks, (126 + 2)/16 = 8 (Megatron's --account-for-embedding-in-pipeline-split and --account-for-loss-...).
- Laid out: each chunk has floor(u/n) or ceil(u/n) units, written down one by one (--pipeline-model-parallel-layout):
  DeepSeek-V3, 61 layers over 16 ranks, 3, 14 times 4, and 2. The larger chunks come right after the first one, so that
  the second rank, which the estimates look at, is as full as any behind it. The first gets a unit more only where all
  between the ends have one, or where it and the last would otherwise have no layer. It needs l >= n.

Splits by --decoder-first-pipeline-num-layers and the like are not planned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from zenith_tune.layouts.layout_batch import IntArray

N = TypeVar("N", int, "IntArray")
"""One size, or an array of them."""
ACCOUNTED = 2
"""Units in addition to the layers: the embedding and the loss."""


def is_even(num_layers: int, *, pp: N, vp: N) -> Any:
    """Tell whether (or, for arrays, where) every chunk gets the same number of layers."""
    return num_layers % (pp * vp) == 0


def is_accounted(num_layers: int, *, pp: N, vp: N) -> Any:
    """Tell whether only the accounted split is even, without an empty chunk."""
    chunks, units = pp * vp, num_layers + ACCOUNTED
    return (pp > 1) & (num_layers % chunks != 0) & (units % chunks == 0) & (units // chunks > 1)


def is_laid_out(num_layers: int, *, pp: N, vp: N) -> Any:
    """Tell whether only the laid-out split is possible."""
    chunks, units = pp * vp, num_layers + ACCOUNTED
    goes_simply = (num_layers % chunks == 0) | ((units % chunks == 0) & (units // chunks > 1))
    return (pp > 1) & (num_layers >= chunks) & (goes_simply ^ True)


def laid_out_chunks(num_layers: int, *, pp: int, vp: int) -> list[int]:
    """Return the layers of each chunk of a laid-out pipeline, in the order of the layers."""
    chunks = pp * vp
    inner = (num_layers + ACCOUNTED) // chunks
    outer = max(inner - 1, 1)
    extra = num_layers - 2 * outer - (chunks - 2) * inner
    larger = min(extra, chunks - 2)
    return [outer + extra - larger, *[inner + 1] * larger, *[inner] * (chunks - 2 - larger), outer]


def layers_per_chunk(num_layers: int, *, pp: N, vp: N) -> N:
    """Return the layers of the fullest chunk; at least 1."""
    chunks = pp * vp
    # Two chunks are both ends, which embedding and loss take a unit of; otherwise one between them is the fullest.
    counts_ends = (pp > 1) & (chunks > 2) & (num_layers % chunks != 0) & (num_layers >= chunks)
    layers: N = -(-(num_layers + ACCOUNTED * counts_ends) // chunks)
    return layers
