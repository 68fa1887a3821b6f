"""Optuna's samplers: the layout nearest to what they suggest is tried, and they learn how that one ran."""

from __future__ import annotations

import importlib
import warnings

from layoutbench.protocol import Params, Problem, Result
from layoutbench.runner import TunerError
from layoutbench.tuners.space import Box

NEEDS = "Optuna's tuners need optuna, cmaes, scipy and torch: pip install 'layoutbench[optuna]'"
try:
    import optuna
except ImportError:
    raise TunerError(NEEDS) from None

optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)


class OptunaTuner:
    """Ask one of Optuna's samplers."""

    endless = True

    def __init__(self, problem: Problem, seed: int) -> None:
        self._box = Box(problem, seed)
        try:
            self._study = optuna.create_study(sampler=self.sampler(seed))
        except ImportError:  # what only some samplers need
            raise TunerError(NEEDS) from None
        self._spaces: dict[str, optuna.distributions.BaseDistribution] = {
            name: self.distribution(axis) for name, axis in self._box.axes.items()
        }

    def sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        """Return Optuna's own sampler."""
        raise NotImplementedError

    def distribution(self, axis: list[int | str]) -> optuna.distributions.BaseDistribution:
        """Return an axis as Optuna knows it: by the rank of its choice, or as a category where these are texts."""
        if any(isinstance(choice, str) for choice in axis):
            return optuna.distributions.CategoricalDistribution(list(range(len(axis))))
        return optuna.distributions.IntDistribution(0, len(axis) - 1)

    def ask(self) -> Params | None:
        """Return the layout nearest to the sampler's suggestion."""
        self._trial = self._study.ask(self._spaces)
        axes = self._box.axes
        return self._box.nearest([self._trial.params[name] / (len(axis) - 1) for name, axis in axes.items()])

    def tell(self, params: Params, result: Result) -> None:
        """Tell the sampler how the layout ran that was tried in place of its suggestion."""
        ranks = {name: axis.index(params[name]) for name, axis in self._box.axes.items()}
        value = self._box.value(result)
        if ranks == self._trial.params or not self.takes_others:
            self._study.tell(self._trial, value)
            return
        self._study.tell(self._trial, state=optuna.trial.TrialState.FAIL)
        self._study.add_trial(optuna.trial.create_trial(params=ranks, distributions=self._spaces, value=value))

    takes_others = True
    """True: learns also from trials that it did not suggest."""


class Tpe(OptunaTuner):
    """Ask the tree-structured Parzen estimator, Optuna's default, in its multivariate form."""

    def sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        """Return TPESampler."""
        return optuna.samplers.TPESampler(seed=seed, multivariate=True)


class Gp(OptunaTuner):
    """Ask the Gaussian process."""

    def sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        """Return GPSampler, which needs scipy and torch."""
        return optuna.samplers.GPSampler(seed=seed)


class CmaEs(OptunaTuner):
    """Ask CMA-ES, over the ranks of all axes."""

    takes_others = False

    def sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        """Return CmaEsSampler, which needs cmaes, but asks for it with its first suggestion only."""
        importlib.import_module("cmaes")
        return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)

    def distribution(self, axis: list[int | str]) -> optuna.distributions.BaseDistribution:
        """Return every axis by the rank of its choice: CMA-ES knows no categories."""
        return optuna.distributions.IntDistribution(0, len(axis) - 1)
