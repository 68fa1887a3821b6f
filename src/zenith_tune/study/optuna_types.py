"""The parameters of a search space as Optuna knows them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from zenith_tune.errors import UsageError
from zenith_tune.study.parameters import CategoricalParameter, FloatParameter, IntParameter, Parameter

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution


def to_distribution(parameter: Parameter) -> BaseDistribution:
    """Return the Optuna distribution over the same values as `parameter`."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    match parameter:
        case IntParameter(low, high, step):
            # Optuna warns where the last step falls short of `high`.
            return IntDistribution(low, high - (high - low) % step, step=step)
        case FloatParameter(low, high, log):
            return FloatDistribution(low, high, log=log)
        case CategoricalParameter(choices):
            return CategoricalDistribution(choices)
    kind = type(parameter).__name__
    known = "IntParameter, FloatParameter, CategoricalParameter or BoolParameter"
    raise UsageError(
        f"Optuna can search {known}, but got {kind}", hint="use one of these, or --strategy grid or random"
    )


@contextmanager
def quiet_optuna(level: int = logging.WARNING) -> Iterator[None]:
    """Let through only what is at least as grave as `level`, and leave the user's settings as they were."""
    logger = logging.getLogger("optuna")
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


def name_objective(study: Study, name: str) -> None:
    """Let Optuna's own tools call the objective by its name instead of a number."""
    from optuna.exceptions import ExperimentalWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        study.set_metric_names([name])
