"""Parameters as Optuna has them."""

from __future__ import annotations

from optuna.distributions import IntDistribution

from zenith_tune.study.optuna_types import to_distribution
from zenith_tune.study.parameters import IntParameter


def test_a_parameter_becomes_a_distribution() -> None:
    assert to_distribution(IntParameter(1, 8, step=2)) == IntDistribution(1, 7, step=2)
