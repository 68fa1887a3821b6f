"""What every evaluator is held to."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

from zenith_tune.evaluators.base import TuningEvaluator
from zenith_tune.study.parameters import Direction


class EvaluatorContract(ABC):
    """Hold an evaluator to its contract."""

    METADATA: Mapping[str, object] = {"trial_id": 1, "command": "train", "parameters": {}, "duration": 2.0}

    @abstractmethod
    def make(self) -> TuningEvaluator:
        """Return the evaluator."""

    @abstractmethod
    def good_log(self) -> str:
        """Return a log that has the value."""

    def bad_logs(self) -> list[str]:
        """Return logs that have no value."""
        return ["", "hello\n", "\x00\x1b[31m\n" * 10]

    def test_it_reads_a_finite_value(self) -> None:
        """Check a log that has the value."""
        value = self.make().evaluate(self.good_log(), self.METADATA)
        assert isinstance(value, float) and math.isfinite(value)

    def test_the_measurement_has_the_same_value(self) -> None:
        """Check that both ways in agree."""
        evaluator = self.make()
        assert evaluator.measure(self.good_log(), self.METADATA).value == evaluator.evaluate(
            self.good_log(), self.METADATA
        )

    def test_a_log_without_a_value_is_a_value_error(self) -> None:
        """Check what turns into a failed trial."""
        for log in self.bad_logs():
            try:
                value = self.make().evaluate(log, self.METADATA)
            except ValueError as error:
                assert str(error), "a ValueError without words explains nothing"
                assert "\n" not in str(error)
            else:
                raise AssertionError(f"{log[:40]!r} has no value, but gave {value}")

    def test_a_log_that_is_still_written_never_raises(self) -> None:
        """Check what is asked of a trial that runs: any beginning of a log may be all there is."""
        evaluator, log = self.make(), self.good_log()
        for text in (*self.bad_logs(), *(log[:end] for end in range(len(log) + 1))):
            progress = evaluator.progress(text, self.METADATA)
            assert progress is None or all(math.isfinite(value) for value in progress.values)
            assert progress is None or evaluator.shows_progress

    def test_it_has_a_direction_and_a_description(self) -> None:
        """Check what a study's header needs."""
        evaluator = self.make()
        assert isinstance(evaluator.direction, Direction)
        assert evaluator.describe() and "\n" not in evaluator.describe()
