"""Any of Optuna's samplers, TPE by default."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import logging
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.strategies.base import EvalFunction, StrategyRegistry, TrialsUnderWay, TuningStrategy
from zenith_tune.strategies.random import checked_seed
from zenith_tune.study.optuna_types import quiet_optuna, to_distribution
from zenith_tune.study.parameters import Direction, Parameter

if TYPE_CHECKING:
    import optuna
    from optuna.samplers import BaseSampler

NEEDS_ARGUMENTS = {"BaseSampler", "BaseGASampler", "GridSampler", "PartialFixedSampler"}
"""Samplers that need more than a name; a grid is a strategy of its own."""
NEEDS_PACKAGES = {"CmaEsSampler": ("cmaes",), "GPSampler": ("torch", "scipy"), "QMCSampler": ("scipy",)}
"""Packages that Optuna does not install, and that some samplers import only after some trials."""


@StrategyRegistry.register("optuna")
class OptunaStrategy(TuningStrategy):
    """The points of an Optuna sampler.

    The sampler's study is in memory and depends only on the seed and the values. A resumed study therefore gets the
    same points again, answers them from its record, and continues where it stopped.
    """

    def __init__(self, *, sampler: Any = "tpe", seed: int = 0) -> None:
        self.sampler = sampler
        """The name of one of Optuna's samplers, or a sampler."""
        self.seed = checked_seed(seed)
        name = _class_name(sampler) if isinstance(sampler, str) else type(sampler).__name__
        missing = [package for package in NEEDS_PACKAGES.get(name, ()) if importlib.util.find_spec(package) is None]
        if missing:
            packages = " ".join(missing)
            hint = f"pip install {packages}, or use sampler=tpe"
            raise UsageError(f"Optuna's {name} needs {packages}, which is not installed", hint=hint)

    def optimize(self, eval_fn: EvalFunction, search_space: Mapping[str, Parameter], direction: Direction) -> None:
        import optuna  # not at the top: a mistake in an argument is reported long before this is loaded

        distributions = {name: to_distribution(parameter) for name, parameter in search_space.items()}
        with _quiet():
            study = optuna.create_study(sampler=self._make_sampler(), direction=direction.value)
        feedback = _Feedback(study)
        under_way: TrialsUnderWay[optuna.Trial] = TrialsUnderWay(eval_fn)
        while True:
            has_room, ended = under_way.look()
            with _quiet():
                for asked, reported in ended:
                    feedback.give(asked, reported.value)
                if feedback.exhausted:
                    return
                trial = study.ask(distributions) if has_room else None
            if trial is None:
                under_way.wait()
            else:
                under_way.start(trial, {name: trial.params[name] for name in search_space})

    def _make_sampler(self) -> BaseSampler:
        import optuna

        if not isinstance(self.sampler, str):
            own: BaseSampler = self.sampler
            return own
        cls: type[BaseSampler] = getattr(optuna.samplers, _class_name(self.sampler))
        seed: dict[str, Any] = {"seed": self.seed} if "seed" in inspect.signature(cls).parameters else {}
        return cls(**seed)


def sampler_names() -> dict[str, str]:
    """Return the samplers that can be named, and their classes' names: `tpe` is `TPESampler`."""
    classes = [name for name in _exported() if name.endswith("Sampler") and name not in NEEDS_ARGUMENTS]
    return {_short(name): name for name in classes}


def _exported() -> list[str]:
    """Return the names that optuna.samplers exports, read from its source: importing it takes half a second."""
    spec = importlib.util.find_spec("optuna")
    folders = spec.submodule_search_locations if spec else None
    source = Path(folders[0], "samplers", "__init__.py").read_text(encoding="utf-8") if folders else ""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def _short(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").removesuffix("sampler")


def _class_name(name: str) -> str:
    known = sampler_names()
    if _short(name) not in known:
        raise UnknownNameError("Optuna sampler", name, known)
    return known[_short(name)]


class _Feedback:
    """Results for an Optuna study, so that a sampler learns from the failures as well.

    A sampler ignores a FAIL trial, and may propose it again. TPE counts PRUNED trials among the bad, but the oldest of
    them among the good as long as nothing better is known: failures are PRUNED from the first success on.
    """

    def __init__(self, study: optuna.Study) -> None:
        self.exhausted = False
        self._study = study
        self._has_success = False
        self._early_failures: list[optuna.trial.FrozenTrial] = []

    def give(self, trial: optuna.Trial, value: float | None) -> None:
        try:
            if value is None or math.isnan(value):
                self._observe_failure(trial)
            else:
                self._observe_success(trial, value)
        except RuntimeError as error:
            # A sampler that has tried everything stops the study, which only Study.optimize allows.
            if "Study.stop" not in str(error):
                raise
            self.exhausted = True

    def _observe_failure(self, trial: optuna.Trial) -> None:
        from optuna.trial import TrialState, create_trial

        if self._has_success:
            self._study.tell(trial, state=TrialState.PRUNED)
            return
        pruned = create_trial(state=TrialState.PRUNED, params=trial.params, distributions=trial.distributions)
        self._early_failures.append(pruned)
        self._study.tell(trial, state=TrialState.FAIL)

    def _observe_success(self, trial: optuna.Trial, value: float) -> None:
        self._has_success = True
        while self._early_failures:
            self._study.add_trial(self._early_failures.pop(0))
        self._study.tell(trial, value)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Optuna's messages and warnings off the terminal."""
    with quiet_optuna(logging.ERROR), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
