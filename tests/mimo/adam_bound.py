"""How far weights may drift apart when gradients differ by rounding, by Adam's own formula.

An update is u = m / (sqrt(v) + eps), m and v being averages of the gradients and of their squares. Where gradients
differ by at most d, m differs by at most d, and sqrt(v), which is a norm, by at most d too. So u differs by at most
(d + |u| d) / (sqrt(v) - d + eps), and never by more than 2 (|u| + 1): where a gradient is not much larger than d, its
update may be anything between a step up and a step down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from zenith_mimo.optimizer import OptimizerConfig

ROUNDING = 1e-6
"""Of a tensor's largest weight, for the arithmetic of the updates themselves."""


class DriftBound:
    """Follow one parameter's gradients and weights beside those of one process, step by step."""

    def __init__(self, name: str, cut: Callable[[Tensor], Tensor], config: OptimizerConfig) -> None:
        self._name, self._cut, self._config = name, cut, config
        self._largest: Tensor | float = 0.0
        self._bound: Tensor | float = 0.0
        self._num_steps = 0

    def excess(self, clipped: Tensor, weights: Tensor, expected: dict[str, Any]) -> float:
        """Return the largest part of its bound by which a weight differs after a step: above 1 is too much."""
        d = torch.maximum((clipped.double() - self._of(expected, "clipped")).abs(), torch.as_tensor(self._largest))
        self._largest = d
        self._num_steps += 1
        self._bound = self._bound + self._config.lr * self._update_drift(d, expected)
        wanted = self._of(expected, "weights")
        return float(((weights.double() - wanted).abs() / (self._bound + ROUNDING * wanted.abs().max())).max())

    def _update_drift(self, d: Tensor, expected: dict[str, Any]) -> Tensor:
        """Return how far the update may differ: an average differs by no more than the largest difference so far."""
        beta1, beta2 = self._config.betas
        m = self._of(expected, "exp_avg") / (1 - beta1**self._num_steps)
        root = (self._of(expected, "exp_avg_sq") / (1 - beta2**self._num_steps)).sqrt()
        u = (m / (root + self._config.eps)).abs()
        return torch.minimum((d + u * d) / ((root - d).clamp_min(0.0) + self._config.eps), 2 * (u + 1))

    def _of(self, expected: dict[str, Any], kind: str) -> Tensor:
        return self._cut(expected[kind][self._name]).double()
