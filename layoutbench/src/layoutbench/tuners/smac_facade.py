"""SMAC: a random forest over the axes, asked for one layout at a time."""

from __future__ import annotations

import logging
import math

from layoutbench.protocol import Params, Problem, Result
from layoutbench.runner import TunerError
from layoutbench.tuners.space import Box, scratch_folder

try:
    from ConfigSpace import CategoricalHyperparameter, ConfigurationSpace, OrdinalHyperparameter
    from joblib import parallel_config
    from smac import HyperparameterOptimizationFacade, Scenario
    from smac.main.exceptions import ConfigurationSpaceExhaustedException
    from smac.runhistory.dataclasses import TrialInfo, TrialValue
except ImportError:
    raise TunerError("tuner smac needs SMAC: pip install 'layoutbench[smac]'") from None

NUM_FIRST, NUM_CHALLENGERS = 10, 1000
"""By default ten for each axis, which would be the whole search here, and 10,000: no landscape has as many points."""


class Smac:
    """Ask SMAC3's facade for hyperparameter optimization; the layout nearest to what it suggests is tried."""

    endless = True
    settings = (
        f"SMAC's HyperparameterOptimizationFacade with its defaults, but for {NUM_FIRST} configurations of the initial "
        f"design (default: 10 per axis) and {NUM_CHALLENGERS:,} challengers (default: 10,000)"
    )

    def __init__(self, problem: Problem, seed: int) -> None:
        logging.getLogger("smac").setLevel(logging.ERROR)
        self._box = Box(problem, seed)
        space = ConfigurationSpace(seed=seed)
        for name, axis in self._box.axes.items():
            kind = CategoricalHyperparameter if any(isinstance(item, str) for item in axis) else OrdinalHyperparameter
            space.add(kind(name, list(range(len(axis)))))
        num_layouts, facade = len(problem.layouts), HyperparameterOptimizationFacade
        scenario = Scenario(
            space, deterministic=True, n_trials=num_layouts + 1, seed=seed, output_directory=scratch_folder(self)
        )
        self._smac = facade(
            scenario,
            lambda config, seed=0: 0.0,
            initial_design=facade.get_initial_design(scenario, n_configs=min(NUM_FIRST, num_layouts)),
            acquisition_maximizer=facade.get_acquisition_maximizer(scenario, challengers=NUM_CHALLENGERS),
            overwrite=True,
        )
        self._asked: TrialInfo | None = None

    def ask(self) -> Params | None:
        """Return the layout nearest to SMAC's suggestion, and what is left once it suggests no more."""
        try:
            with parallel_config("sequential"):  # threads for each of its small predictions take longer
                self._asked = self._smac.ask()
            config = dict(self._asked.config)
        except (ConfigurationSpaceExhaustedException, StopIteration):
            self._asked, config = None, dict.fromkeys(self._box.axes, 0)
        return self._box.nearest([config[name] / (len(axis) - 1) for name, axis in self._box.axes.items()])

    def tell(self, params: Params, result: Result) -> None:
        """Tell SMAC how the layout ran that was tried in place of its suggestion, which waits for its own result."""
        cost = math.exp(self._box.value(result))  # the facade takes the logarithm itself
        if self._asked is not None:
            self._smac.tell(self._asked, TrialValue(cost=cost, time=result.cost_s))
