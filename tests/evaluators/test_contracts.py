"""Every evaluator, held to the contract that is shipped for third parties."""

from __future__ import annotations

from zenith_tune import RegexEvaluator
from zenith_tune.evaluators.duration import DurationEvaluator
from zenith_tune.presets.megatron.evaluator import MegatronEvaluator
from zenith_tune.testing import EvaluatorContract

ITERATION = " iteration {0}/ 5 | elapsed time per iteration (ms): 40{0}.0 | global batch size: 16 |\n"


class TestRegex(EvaluatorContract):
    def make(self) -> RegexEvaluator:
        return RegexEvaluator(r"value: (\S+)", selector="median")

    def good_log(self) -> str:
        return "value: 1\nnoise\nvalue: 3.5e-1\n"

    def bad_logs(self) -> list[str]:
        return [*super().bad_logs(), "value: nan", "value: inf", "value: many"]


class TestMegatronEvaluator(EvaluatorContract):
    def make(self) -> MegatronEvaluator:
        return MegatronEvaluator()

    def good_log(self) -> str:
        return "".join(ITERATION.format(number) for number in range(1, 6))


class TestDuration(EvaluatorContract):
    def make(self) -> DurationEvaluator:
        return DurationEvaluator()

    def good_log(self) -> str:
        return ""

    def bad_logs(self) -> list[str]:
        return []  # the value is the run's duration: no log lacks it
