"""What every preset is held to."""

from __future__ import annotations

import contextlib
import itertools
import random
from abc import ABC, abstractmethod

from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import TuningEvaluator
from zenith_tune.presets.base import TuningPreset
from zenith_tune.strategies.base import TuningStrategy
from zenith_tune.study.parameters import Parameter, Value


class PresetContract(ABC):
    """Hold a preset to its contract."""

    @abstractmethod
    def make(self) -> TuningPreset:
        """Return the preset."""

    def command(self) -> str:
        """Return a command that the preset is made for."""
        return "python train.py --lr 0.1 'a b'"

    def _points(self, num: int = 300) -> list[dict[str, Value]]:
        space = self.make().get_search_space()
        grid = itertools.islice(itertools.product(*(p.grid(3) for p in space.values())), num)
        rng = random.Random(0)
        drawn = [{name: p.sample(rng) for name, p in space.items()} for _ in range(num)]
        return [dict(zip(space, values, strict=True)) for values in grid] + drawn

    def test_the_search_space_is_made_of_parameters(self) -> None:
        """Check the space."""
        space = self.make().get_search_space()
        assert space and all(isinstance(parameter, Parameter) for parameter in space.values())

    def test_a_pruned_point_has_a_reason_in_one_line(self) -> None:
        """Check that `prune` is the truth value of `explain`."""
        preset = self.make()
        for point in self._points():
            reason = preset.explain(point)
            assert preset.prune(point) == (reason is not None)
            assert reason is None or (reason.strip() and "\n" not in reason)

    def test_some_point_is_worth_a_trial(self) -> None:
        """Check that the rules leave something."""
        preset = self.make()
        assert any(not preset.prune(point) for point in self._points())

    def test_applying_a_point_twice_changes_nothing_more(self) -> None:
        """Check that options replace one another."""
        preset = self.make()
        for point in [point for point in self._points() if not preset.prune(point)][:20]:
            once = preset.apply_parameters(self.command(), point)
            assert preset.apply_parameters(once, point) == once
            # Variables may be set in front of it.
            assert f" {self.command().split()[0]}" in f" {once}"

    def test_it_recommends_a_strategy_and_an_evaluator_and_labels_points(self) -> None:
        """Check what the tuner asks for."""
        preset = self.make()
        assert isinstance(preset.get_recommended_strategy(), TuningStrategy)
        with contextlib.suppress(UsageError):  # a preset may leave the evaluator to its user
            assert isinstance(preset.evaluator(), TuningEvaluator)
        assert all(preset.label(point) and "\n" not in preset.label(point) for point in self._points(20))
