"""SMAC: a random forest over the axes, asked for one layout at a time."""

from __future__ import annotations

import logging

from layoutbench.protocol import Params, Problem, Result
from layoutbench.runner import TunerError
from layoutbench.tuners.space import Box, scratch_folder

try:
    from ConfigSpace import CategoricalHyperparameter, Configuration, ConfigurationSpace, OrdinalHyperparameter
    from smac import HyperparameterOptimizationFacade, Scenario
    from smac.main.exceptions import ConfigurationSpaceExhaustedException
    from smac.runhistory.dataclasses import TrialInfo, TrialValue
except ImportError:
    raise TunerError("tuner smac needs SMAC: pip install 'layoutbench[smac]'") from None


class Smac:
    """Ask SMAC3's facade for hyperparameter optimization; the layout nearest to what it suggests is tried."""

    endless = True

    def __init__(self, problem: Problem, seed: int) -> None:
        logging.getLogger("smac").setLevel(logging.ERROR)
        self._box = Box(problem, seed)
        self._space = ConfigurationSpace(seed=seed)
        for name, axis in self._box.axes.items():
            kind = CategoricalHyperparameter if any(isinstance(item, str) for item in axis) else OrdinalHyperparameter
            self._space.add(kind(name, list(range(len(axis)))))
        scenario = Scenario(
            self._space,
            deterministic=True,
            n_trials=len(problem.layouts) + 1,
            seed=seed,
            output_directory=scratch_folder(self),
        )
        initial = HyperparameterOptimizationFacade.get_initial_design(scenario, n_configs=min(10, len(problem.layouts)))
        self._smac = HyperparameterOptimizationFacade(
            scenario, lambda config, seed=0: 0.0, initial_design=initial, overwrite=True
        )

    def ask(self) -> Params | None:
        """Return the layout nearest to SMAC's suggestion, and what is left once it suggests no more."""
        try:
            config = self._smac.ask().config
        except (ConfigurationSpaceExhaustedException, StopIteration):
            config = dict.fromkeys(self._box.axes, 0)
        return self._box.nearest([config[name] / (len(axis) - 1) for name, axis in self._box.axes.items()])

    def tell(self, params: Params, result: Result) -> None:
        """Tell SMAC how the layout ran that was tried."""
        ranks = {name: axis.index(params[name]) for name, axis in self._box.axes.items()}
        info = TrialInfo(Configuration(self._space, values=ranks), seed=0)
        self._smac.tell(info, TrialValue(cost=self._box.value(result), time=result.cost_s))
