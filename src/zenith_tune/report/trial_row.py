"""What every table shows of a trial: one row, of a trial that ran, that runs, or that a digest holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from zenith_tune.study.study import Study
from zenith_tune.study.trial import Trial
from zenith_tune.units import format_bytes, format_gain, format_seconds, format_spread, format_value


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """The figures of a trial; what is not known is None, and shown as nothing."""

    name: str
    label: str
    state: str
    is_baseline: bool = False
    iterations: int | None = None
    value: float | None = None
    half_width: float | None = None
    gain: float | None = None
    """Over the user's own command, which has none itself."""
    step_s: float | None = None
    memory_bytes: float | None = None
    duration_s: float | None = None

    @classmethod
    def of_trial(cls, trial: Trial, label: str, study: Study, *, state: str = "") -> Self:
        return cls(
            name=study.name_of(trial),
            label=label,
            state=state or str(trial.outcome),
            is_baseline=trial.is_baseline,
            iterations=trial.num_samples,
            value=trial.value,
            half_width=trial.half_width,
            gain=study.gain_of(trial),
            step_s=trial.step_s,
            memory_bytes=trial.peak_memory_bytes,
            duration_s=trial.duration_s,
        )

    @classmethod
    def of_digest(cls, trial: Mapping[str, Any]) -> Self:
        names = (field.name for field in fields(cls) if field.name != "iterations")
        return cls(**{name: trial[name] for name in names})

    def cells(self, *columns: str) -> list[str]:
        """Return the texts of these columns."""
        value = "" if self.value is None else format_value(self.value)
        cells = {
            "trial": self.name,
            "layout": self.label,
            "state": self.state,
            "iter": "" if self.iterations is None else str(self.iterations),
            "value": value,
            "value and spread": value + format_spread(self.half_width) if value else "",
            "gain": "" if self.gain is None or self.is_baseline else format_gain(self.gain),
            "step": "" if self.step_s is None else format_seconds(self.step_s),
            "memory": format_bytes(self.memory_bytes) if self.memory_bytes else "",
            "time": "" if self.duration_s is None else format_seconds(self.duration_s),
        }
        return [cells[column] for column in columns]
