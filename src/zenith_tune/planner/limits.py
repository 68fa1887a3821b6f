"""How large a batch and a sequence may be to be planned for."""

from __future__ import annotations

MAX_BATCH, MAX_SEQ = 10_000_000, 100_000_000
"""Larger than any job has; beyond, whole numbers of 32 bits run over."""


RISK = 0.3
