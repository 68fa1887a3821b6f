"""How large a batch and a sequence may be to be planned for, and how much risk a plan takes by default."""

from __future__ import annotations

MAX_BATCH, MAX_SEQ = 10_000_000, 100_000_000
"""Larger than any job has; beyond, whole numbers of 32 bits run over."""
IMBALANCE, MOST_IMBALANCE = 0.35, 2.0
"""Standard deviation of the loads of experts over their mean, of a trained router, and the most that is planned for.

Over five models on real text the Gini coefficient of the loads is 0.105, 0.15, one between, and twice 0.24 or more (Ma
et al. 2026, arXiv 2605.20982, abstract). This is that of the one between, 0.19, since it is erf(sigma / 2) of a
log-normal distribution."""
RISK = 0.3
"""A layout is taken to fit if its probability of running out of memory is below this."""
