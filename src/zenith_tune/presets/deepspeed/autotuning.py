"""The section `autotuning` of a DeepSpeed configuration: what a study takes from it, and what not and why.

Names and defaults are those of deepspeed/autotuning/constants.py of 0.19.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zenith_tune.describe.deepspeed_config import AUTOTUNING, DsConfig, shown_json
from zenith_tune.errors import UsageError

METRICS = ("throughput", "latency", "flops")
INSIDE = {"gridsearch": "grid", "random": "random", "model_based": "model"}
"""How DeepSpeed's autotuner calls the ways of searching inside a stage."""
RESULTS = "autotuning_results"
"""Where it leaves its results, unless `results_dir` says otherwise."""
_FLAGS = ("enabled", "fast", "overwrite")
_COUNTS = (
    *("tuner_early_stopping", "tuner_num_trials", "num_tuning_micro_batch_sizes", "mp_size"),
    *("min_train_batch_size", "max_train_batch_size"),
    *("min_train_micro_batch_size_per_gpu", "max_train_micro_batch_size_per_gpu"),
    *("start_profile_step", "end_profile_step"),
)
_TEXTS = ("results_dir", "exps_dir", "metric_path", "model_info_path")
_OBJECTS = ("arg_mappings", "model_info")
_WORDS = {"metric": METRICS, "tuner_type": tuple(INSIDE)}
_KEYS = {*_FLAGS, *_COUNTS, *_TEXTS, *_OBJECTS, *_WORDS}
_STEADY, _MODEL = "steps are measured until their speed is steady", "the model is read from the command, or from model="
LEFT_OUT = {
    "start_profile_step": _STEADY,
    "end_profile_step": _STEADY,
    "num_tuning_micro_batch_sizes": "bisection finds the largest micro-batch that runs",
    "exps_dir": "trials are in the study's folder",
    "overwrite": "no study overwrites another, and --resume continues one",
    "metric_path": "what a trial measured is in its folder",
    "model_info": _MODEL,
    "model_info_path": _MODEL,
}
"""Keys without an effect, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Autotuning:
    """The section as it counts: nothing of one that is switched off."""

    values: Mapping[str, Any]
    is_off: bool = False
    asked: str = ""
    """What the command asks DeepSpeed's launcher for by --autotuning: tune, run, or nothing."""

    @classmethod
    def of(cls, config: DsConfig, asked: str) -> Autotuning:
        """Check a section; a command that asks for tuning switches it on."""
        section = config.get((AUTOTUNING,))
        if section is None:
            return cls(values={}, asked=asked)
        if not isinstance(section, dict):
            raise _wrong(config, AUTOTUNING, 'a JSON object, such as {"enabled": true}', section)
        given = {key: value for key, value in section.items() if value is not None}
        values = {key: _checked(config, key, value) for key, value in given.items()}
        is_off = values.get("enabled") is False and not asked
        return cls(values={} if is_off else values, is_off=is_off, asked=asked)

    def get(self, key: str) -> Any:
        """Return a value, None where there is none."""
        return self.values.get(key)

    @property
    def results_dir(self) -> str | None:
        """Where DeepSpeed's own files are left; None: nowhere."""
        return self.get("results_dir") or (RESULTS if self.asked else None)

    def notes(self) -> Iterator[str]:
        """Yield what the section and --autotuning come to."""
        if self.asked:
            then = ", and the best command trains at its end" if self.asked == "run" else ""
            yield f"the study takes the place of --autotuning {self.asked}{then}"
        if self.is_off:
            yield "the section autotuning has no effect: it is not enabled"
        if self.values:
            yield "the section autotuning gives limits and is taken out of what trials run"
        reasons: dict[str, list[str]] = {}
        for key in self.values:
            reason = LEFT_OUT.get(key) or ("" if key in _KEYS else "DeepSpeed has no such key")
            if reason:
                reasons.setdefault(reason, []).append(key)
        if reasons:
            listed = "; ".join(f"{', '.join(keys)} ({reason})" for reason, keys in reasons.items())
            yield f"of that section these have no effect: {listed}"


def _checked(config: DsConfig, key: str, value: Any) -> Any:
    if key in _FLAGS and not isinstance(value, bool):
        raise _wrong(config, f"{AUTOTUNING}.{key}", "true or false", value)
    if key in _COUNTS:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or value < (0 if key == "start_profile_step" else 1):
            raise _wrong(config, f"{AUTOTUNING}.{key}", "a whole number from 1", value)
    if key in _TEXTS and not (isinstance(value, str) and value):
        raise _wrong(config, f"{AUTOTUNING}.{key}", "a path", value)
    if key in _WORDS:
        word = value.lower() if isinstance(value, str) else value  # DeepSpeed's documentation writes FLOPS
        if word not in _WORDS[key]:
            raise _wrong(config, f"{AUTOTUNING}.{key}", f"one of {', '.join(_WORDS[key])}", value)
        return word
    return value


def _wrong(config: DsConfig, key: str, rule: str, value: object) -> UsageError:
    return UsageError(f"{config.source}: {key} must be {rule}, but got {shown_json(value)}: correct it")
