"""A pipeline written down chunk by chunk, as Megatron-LM's --pipeline-model-parallel-layout.

E is the embedding, t a layer, m a layer that predicts further tokens (MTP), L the loss; | ends a chunk, and *n repeats
what stands before it: one letter, or several in parentheses. Chunk k belongs to pipeline rank k modulo pp.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby


def pipeline_layout(chunks: Sequence[int], *, num_mtp_layers: int = 0) -> str:
    """Return the string for chunks of so many layers; MTP layers go beside the loss, where they take their input.

    >>> pipeline_layout([3, 4, 4, 4, 2], num_mtp_layers=1)
    'Et*3|(t*4|)*3,t*2mL'
    """
    first, *inner, last = chunks
    middle = "".join(_run(layers, len(list(run))) for layers, run in groupby(inner))
    return f"E{_letters('t', first)}|{middle}{_letters('t', last)}{_letters('m', num_mtp_layers)}L"


def _run(layers: int, count: int) -> str:
    """Write so many equal chunks; the comma means nothing to Megatron, and parts them for a reader."""
    chunk = f"{_letters('t', layers)}|"
    return f"({chunk})*{count}," if count > 1 else chunk


def _letters(letter: str, count: int) -> str:
    return f"{letter}*{count}" if count > 1 else letter * count
