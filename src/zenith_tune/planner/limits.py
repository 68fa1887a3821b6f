"""The largest batch and sequence that are planned for, the most probes, and the default risk and imbalance."""

from __future__ import annotations

MAX_BATCH, MAX_SEQ = 10_000_000, 100_000_000
"""Limits beyond any real job, above which 32-bit integers overflow."""
MAX_PROBES = 64
"""Layouts of a plan that `--probe` runs ranks of, at most."""
IMBALANCE, MOST_IMBALANCE = 0.35, 2.0
"""Standard deviation of expert loads over their mean, for a trained router, and the largest that is planned for.

Over five models on real text the Gini coefficient of the loads is 0.105, 0.15, one between, and twice 0.24 or more (Ma
et al. 2026, arXiv 2605.20982, abstract). This is that of the one between, 0.19, since it is erf(sigma / 2) of a
log-normal distribution."""
RISK = 0.3
"""The probability of running out of memory below which a layout counts as fitting."""
