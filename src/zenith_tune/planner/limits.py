"""How large a batch and a sequence may be to be planned for, and how much risk a plan takes by default."""

from __future__ import annotations

MAX_BATCH, MAX_SEQ = 10_000_000, 100_000_000
"""Larger than any job has; beyond, whole numbers of 32 bits run over."""
IMBALANCE = 1.5
"""Tokens on the busiest expert-parallel rank over the mean, for which memory is stated beside balanced routing."""
RISK = 0.3
"""A layout is taken to fit if its probability of running out of memory is below this."""
