"""How a study was searched: by which strategy, for how many trials at most, why it stopped, what the strategy found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from zenith_tune.errors import UsageError
from zenith_tune.study.budget import Budget, MemoryLimit, Training
from zenith_tune.study.files import Json
from zenith_tune.study.precision import LaunchNoise
from zenith_tune.study.trial import Findings, Prediction
from zenith_tune.study.verdict import Verdict

SEARCH_KEY = "zenithtune:search"
"""The study's attribute in the database, and `search` in its study.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySearch:
    """The search of a study, without its trials; empty in the records of older releases."""

    strategy: str = ""
    max_trials: int | None = None
    """An upper bound on the trials; None where there is none."""
    num_slots: int = 1
    """How many trials run side by side."""
    cluster: str = ""
    """The name of the machine or cluster that a plan was made for: who reads the study may sit at another."""
    begun_s: float = 0.0
    """When the study was begun, or last resumed; seconds since 1970."""
    ended_s: float | None = None
    why_ended: str = ""
    is_done: bool = False
    """Whether it ended by itself, with nothing left that is worth a trial."""
    memory_limit_bytes: float | None = None
    """The limit on the GPU memory of the best."""
    budget: Budget = field(default_factory=Budget)
    memory: MemoryLimit = field(default_factory=MemoryLimit)
    """The limits as they were stated: a resumed study keeps them."""
    launches: LaunchNoise = field(default_factory=LaunchNoise)
    """How much runs of one command had differed on the machine before the study."""
    elapsed_s: float = 0.0
    """Seconds that all runs of the study took; of one that was killed, until its last trial ended."""
    verdict: Mapping[str, Any] = field(default_factory=dict)
    """What the study came to, as plain values; nothing while it runs."""
    tables: tuple[Findings, ...] = field(default=())
    """What the strategy closed with; those of the time before, while the study runs."""

    @property
    def stopped(self) -> str:
        """Why the study stopped; nothing while it runs, or where its tuner was killed."""
        return self.why_ended if self.ended_s is not None and self.ended_s >= self.begun_s else ""

    @property
    def predictions(self) -> dict[int, Prediction]:
        """What the strategy expected of its trials, by their numbers."""
        return {number: stored for table in self.tables for number, stored in table.predictions.items()}

    def ended(
        self, at_s: float, why: str, found: Findings | None, verdict: Verdict | None = None, *, is_done: bool = False
    ) -> StudySearch:
        """Return the search at its end; a strategy that was cut off before it found anything leaves what was known."""
        tables = (found,) if found is not None and (found.rows or found.lines) else self.tables
        return replace(
            self,
            ended_s=max(at_s, self.begun_s),
            why_ended=why,
            is_done=is_done,
            tables=tables,
            verdict=asdict(verdict) if verdict else {},
        )

    @classmethod
    def from_json(cls, content: object) -> StudySearch:
        """Return what a record holds; nothing is known by one that has it not, or not as this release writes it."""
        if not isinstance(content, Mapping):
            return cls()
        known = {field.name: content[field.name] for field in fields(cls) if field.name in content}
        try:
            budget = known.pop("budget", {})
            return cls(
                **known
                | {
                    "budget": Budget(**{**budget, "training": Training(**budget.get("training", {}))}),
                    "memory": MemoryLimit(**known.get("memory", {})),
                    "launches": LaunchNoise.stored(known.get("launches")),
                    "tables": tuple(map(_table, known.get("tables", ()))),
                }
            )
        except (AttributeError, KeyError, TypeError, UsageError, ValueError):
            return cls()


def _table(content: Json) -> Findings:
    predictions = content.get("predictions", {})
    return Findings(
        title=content["title"],
        columns=tuple(content["columns"]),
        rows=tuple(map(tuple, content["rows"])),
        lines=tuple(content.get("lines", ())),
        predictions={int(number): Prediction(**each) for number, each in predictions.items()},
    )
