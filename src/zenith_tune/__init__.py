"""ZenithTune finds the fastest way to run a large-model training job on the hardware at hand."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zenith_tune.api.diagnose import diagnose as diagnose
    from zenith_tune.api.plan import compare_clusters as compare_clusters
    from zenith_tune.api.plan import estimate as estimate
    from zenith_tune.api.plan import plan as plan
    from zenith_tune.api.run_diagnosis import RunDiagnosis as RunDiagnosis
    from zenith_tune.api.study_result import Gain as Gain
    from zenith_tune.api.study_result import StudyResult as StudyResult
    from zenith_tune.api.tune import tune as tune
    from zenith_tune.calibrate.calibration_file import default_calibration as default_calibration
    from zenith_tune.describe.cluster_catalog import load_cluster as load_cluster
    from zenith_tune.describe.framework_spec import load_framework as load_framework
    from zenith_tune.describe.job_spec import JobSpec as JobSpec
    from zenith_tune.describe.model_catalog import load_model as load_model
    from zenith_tune.errors import ConsecutiveDuplicateLimitExceeded as ConsecutiveDuplicateLimitExceeded
    from zenith_tune.errors import ConsecutivePruneLimitExceeded as ConsecutivePruneLimitExceeded
    from zenith_tune.errors import TrialExhausted as TrialExhausted
    from zenith_tune.errors import UsageError as UsageError
    from zenith_tune.errors import ZenithTuneError as ZenithTuneError
    from zenith_tune.evaluators.base import EvaluatorRegistry as EvaluatorRegistry
    from zenith_tune.evaluators.base import TuningEvaluator as TuningEvaluator
    from zenith_tune.evaluators.regex import RegexEvaluator as RegexEvaluator
    from zenith_tune.layouts.layout import Layout as Layout
    from zenith_tune.planner.plan import Plan as Plan
    from zenith_tune.planner.plan import PlannedLayout as PlannedLayout
    from zenith_tune.planner.planner import Planner as Planner
    from zenith_tune.presets.base import PresetRegistry as PresetRegistry
    from zenith_tune.presets.base import TuningPreset as TuningPreset
    from zenith_tune.presets.megatron.documented.preset import MegatronPreset as MegatronPreset
    from zenith_tune.runners.base import RunnerRegistry as RunnerRegistry
    from zenith_tune.strategies.base import StrategyRegistry as StrategyRegistry
    from zenith_tune.strategies.base import TuningStrategy as TuningStrategy
    from zenith_tune.strategies.megatron_heuristic import MegatronHeuristicStrategy as MegatronHeuristicStrategy
    from zenith_tune.study.parameters import BoolParameter as BoolParameter
    from zenith_tune.study.parameters import CategoricalParameter as CategoricalParameter
    from zenith_tune.study.parameters import Direction as Direction
    from zenith_tune.study.parameters import FloatParameter as FloatParameter
    from zenith_tune.study.parameters import IntParameter as IntParameter
    from zenith_tune.study.parameters import Parameter as Parameter
    from zenith_tune.study.trial import Outcome as Outcome
    from zenith_tune.study.trial import Trial as Trial
    from zenith_tune.tuner import PresetTuner as PresetTuner
    from zenith_tune.tuning.events import StudyListener as StudyListener
    from zenith_tune.tuning.options import TuneOptions as TuneOptions

__version__ = "0.2.0"

# Imported when first used, so that `import zenith_tune` and `zenithtune --help` stay quick.
_HOMES = {
    "zenith_tune.api.diagnose": ("diagnose",),
    "zenith_tune.api.plan": ("compare_clusters", "estimate", "plan"),
    "zenith_tune.api.run_diagnosis": ("RunDiagnosis",),
    "zenith_tune.api.study_result": ("Gain", "StudyResult"),
    "zenith_tune.api.tune": ("tune",),
    "zenith_tune.calibrate.calibration_file": ("default_calibration",),
    "zenith_tune.describe.cluster_catalog": ("load_cluster",),
    "zenith_tune.describe.framework_spec": ("load_framework",),
    "zenith_tune.describe.job_spec": ("JobSpec",),
    "zenith_tune.describe.model_catalog": ("load_model",),
    "zenith_tune.errors": (
        *("ConsecutiveDuplicateLimitExceeded", "ConsecutivePruneLimitExceeded", "TrialExhausted"),
        *("UsageError", "ZenithTuneError"),
    ),
    "zenith_tune.evaluators.base": ("EvaluatorRegistry", "TuningEvaluator"),
    "zenith_tune.evaluators.regex": ("RegexEvaluator",),
    "zenith_tune.layouts.layout": ("Layout",),
    "zenith_tune.study.parameters": (
        *("BoolParameter", "CategoricalParameter", "Direction", "FloatParameter", "IntParameter", "Parameter"),
    ),
    "zenith_tune.planner.plan": ("Plan", "PlannedLayout"),
    "zenith_tune.planner.planner": ("Planner",),
    "zenith_tune.presets.base": ("PresetRegistry", "TuningPreset"),
    "zenith_tune.presets.megatron.documented.preset": ("MegatronPreset",),
    "zenith_tune.runners.base": ("RunnerRegistry",),
    "zenith_tune.strategies.base": ("StrategyRegistry", "TuningStrategy"),
    "zenith_tune.strategies.megatron_heuristic": ("MegatronHeuristicStrategy",),
    "zenith_tune.study.trial": ("Outcome", "Trial"),
    "zenith_tune.tuner": ("PresetTuner",),
    "zenith_tune.tuning.events": ("StudyListener",),
    "zenith_tune.tuning.options": ("TuneOptions",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

_BROUGHT = {"plan_rl": ("zenith_rl.plan:plan_rl", "rl")}
"""Names of this project's other packages: where each is, and the extra that installs it."""

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name in _BROUGHT:
        from zenith_tune.registry import of_sibling

        place, extra = _BROUGHT[name]
        return of_sibling(place, f"zenith_tune.{name}", extra)
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__, *_BROUGHT]
