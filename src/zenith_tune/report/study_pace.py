"""How far a study is: trials done of at most how many, and the time that the rest may take."""

from __future__ import annotations

import math
from dataclasses import dataclass

from zenith_tune.study.study import Study
from zenith_tune.units import format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPace:
    """Hold what bounds a study."""

    max_trials: int | None = None
    num_slots: int = 1
    """How many trials run side by side."""

    def left_s(self, study: Study) -> float | None:
        """Return the seconds that the trials which are left take at most; None where that cannot be told."""
        if self.max_trials is None:
            return None
        num_left = max(self.max_trials - study.num_searched, 0)
        return study.time_left_s(math.ceil(num_left / self.num_slots))

    def words(self, study: Study) -> list[str]:
        """Return it in words; nothing of a study without a bound."""
        if self.max_trials is None:
            return []
        left_s = self.left_s(study)
        done = f"{study.num_searched} of at most {self.max_trials}"
        return [done, f"at most {format_seconds(left_s)} left"] if left_s else [done]
