"""The orders of DeepSpeed's autotuner, from its own classes: layouts one by one, and by its cost model."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from layoutbench.protocol import Params, Problem, Result
from layoutbench.runner import TunerError
from layoutbench.tuners.space import scratch_folder

try:
    import xgboost  # noqa: F401  # DeepSpeed's cost model
    from deepspeed.autotuning.tuner import GridSearchTuner, ModelBasedTuner
    from deepspeed.utils import logger
except ImportError:
    raise TunerError("DeepSpeed's tuners need deepspeed and xgboost: pip install 'layoutbench[deepspeed]'") from None

EARLY_STOPPING, MOST_TRIALS = 5, 50
"""DeepSpeed's defaults: so many experiments without a better one end the search, or so many in all."""


class DeepSpeedTuner:
    """Take layouts from one of DeepSpeed's tuners and return throughputs, as its autotuner does."""

    def __init__(self, problem: Problem, seed: int) -> None:
        logger.setLevel(logging.ERROR)
        random.seed(seed)
        np.random.seed(seed)  # what DeepSpeed draws from
        self._axes = {name: list(axis) for name, axis in problem.axes.items()}
        self._folder = scratch_folder(self)
        experiments = [self._experiment(number, params) for number, params in enumerate(problem.layouts)]
        self._manager = SimpleNamespace(finished_experiments={})
        self._tuner = self.tuner(experiments)
        self._num, self._best, self._best_at = 0, 0.0, 0

    def tuner(self, experiments: list[dict[str, Any]]) -> Any:
        """Return DeepSpeed's own tuner."""
        raise NotImplementedError

    def ask(self) -> Params | None:
        """Return the next experiment's layout, until DeepSpeed would end the search."""
        stale = self._num and self._num >= self._best_at + EARLY_STOPPING
        if stale or self._num >= MOST_TRIALS or not self._tuner.has_next():
            return None
        (self._experiment_now,) = self._tuner.next_batch(1)
        params: Params = self._experiment_now["params"]
        return params

    def tell(self, params: Params, result: Result) -> None:
        """Return the throughput, or the failure."""
        throughput = 1 / result.step_s if result.step_s else 0.0
        # Until one has run, DeepSpeed counts each failed experiment as its best.
        if not self._best or throughput > self._best:
            self._best, self._best_at = throughput, self._num
        self._num += 1
        path = self._experiment_now["ds_config"]["autotuning"]["metric_path"]
        Path(path).write_text(f'{{"throughput": {throughput!r}}}', encoding="utf-8")
        failure = None if result.step_s else result.outcome
        self._manager.finished_experiments = {self._num: (self._experiment_now, failure)}
        self._tuner.update()

    def _experiment(self, number: int, params: Params) -> dict[str, Any]:
        ranks = {
            name: value if isinstance(value, int) else self._axes[name].index(value) for name, value in params.items()
        }
        config = {**ranks, "autotuning": {"metric_path": str(self._folder / f"{number}.json")}}
        return {"name": str(number), "result_dir": "", "params": params, "ds_config": config}


class GridOrder(DeepSpeedTuner):
    """Try layouts in order, DeepSpeed's default."""

    def tuner(self, experiments: list[dict[str, Any]]) -> Any:
        """Return GridSearchTuner."""
        return GridSearchTuner(experiments, self._manager, "throughput")


class ModelBased(DeepSpeedTuner):
    """Try layouts by DeepSpeed's cost model, a gradient-boosted ranker of those tried so far."""

    def tuner(self, experiments: list[dict[str, Any]]) -> Any:
        """Return ModelBasedTuner."""
        return ModelBasedTuner(experiments, self._manager, "throughput", self._axes)
