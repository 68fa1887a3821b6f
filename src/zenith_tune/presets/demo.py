"""The smallest complete preset: read it to write your own, then register yours under another name."""

from __future__ import annotations

import re
from collections.abc import Mapping

from zenith_tune.evaluators.base import TuningEvaluator
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.rules import BATCH, JobFacts
from zenith_tune.presets.arguments import refuse_sizes
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.parts import Described
from zenith_tune.shell.placeholders import fill_or_set
from zenith_tune.study.parameters import CategoricalParameter, Parameter, Value

OPTIONS = {
    "tp": "--tensor-model-parallel-size",
    "mbs": "--micro-batch-size",
    "recompute": "--recompute-granularity",
    "gbs": "--global-batch-size",
}


PLAIN_TRAINER = re.compile(r"(?:^|[\s/'\"])fake_train\.py\b")
PLAIN_OPTIONS = {"batch_size": "--batch-size", "num_workers": "--num-workers"}


@PresetRegistry.register("demo")
class DemoPreset(Described):
    """Tune three options of the bundled fake trainer; the constructor's keywords are what `--args` takes.

    A program `fake_train.py` has two options of its own, and prints its `Total training time`.
    """

    def __init__(self, *, n_gpus: int = 8, gbs: int = 16) -> None:
        refuse_sizes(n_gpus=n_gpus, gbs=gbs)
        self.n_gpus = n_gpus
        self.gbs = gbs
        self._is_plain = False

    def bind(self, command: str) -> None:
        self._is_plain = PLAIN_TRAINER.search(command) is not None

    def get_search_space(self) -> dict[str, Parameter]:
        if self._is_plain:
            return {
                "batch_size": CategoricalParameter([16, 32, 64, 128]),
                "num_workers": CategoricalParameter([2, 4, 6, 8]),
            }
        return {
            "tp": CategoricalParameter([tp for tp in (1, 2, 4, 8) if self.n_gpus % tp == 0]),
            "mbs": CategoricalParameter([1, 2, 4]),
            "recompute": CategoricalParameter(["full", "selective"]),
        }

    def explain(self, params: Mapping[str, Value]) -> str | None:
        if self._is_plain:
            return None
        # Points that cannot run are named here, so that they cost no trial.
        tp, mbs = int(params["tp"]), int(params["mbs"])
        return BATCH.reason(JobFacts(), Layout(num_gpus=self.n_gpus, tp=tp, micro_batch=mbs, global_batch=self.gbs))

    def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
        # A placeholder such as {tp} in the command is filled; what has none is set as an option.
        return fill_or_set(command, PLAIN_OPTIONS if self._is_plain else OPTIONS, {**params, "gbs": self.gbs})

    def placeholder_names(self) -> set[str]:
        return {*super().placeholder_names(), "gbs"}

    def evaluator(self) -> TuningEvaluator:
        from zenith_tune.evaluators.regex import RegexEvaluator
        from zenith_tune.presets.megatron.evaluator import MegatronEvaluator

        if self._is_plain:
            return RegexEvaluator(r"Total training time: ([0-9.]+)s")
        return MegatronEvaluator(gbs=self.gbs)
