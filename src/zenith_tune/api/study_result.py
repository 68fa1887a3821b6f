"""A study that has run, or still runs, as a program sees it: its best, its gain, its command, its trials."""

from __future__ import annotations

import functools
import html
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from zenith_tune.api.study_plot import StudyPlot, study_plot
from zenith_tune.errors import UsageError
from zenith_tune.html_table import html_table
from zenith_tune.record.source import StudySource, find_study
from zenith_tune.record.view import StudyView
from zenith_tune.report.standing import verdict_object
from zenith_tune.report.study_digest import StudyDigest
from zenith_tune.report.study_markdown import trial_columns, trial_rows
from zenith_tune.report.trial_row import TrialRow
from zenith_tune.study.files import Json
from zenith_tune.study.trial import Trial
from zenith_tune.units import format_value

if TYPE_CHECKING:
    import pandas as pd

MAX_ROWS = 10
"""Of the table that a notebook shows."""
COLUMNS = ("trial", "layout", "state", "value and spread", "gain", "step", "memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Hold how much faster the best trial is than the user's own command.

    >>> print(Gain(speedup=1.48, low=1.47, high=1.49, is_confirmed=True))
    1.48x (1.47 to 1.49, confirmed)
    """

    speedup: float
    """1.48 is 48% more per second; 1.0 where nothing is faster."""
    low: float | None
    high: float | None
    """The interval that holds it with 90%; None where there is no gain."""
    is_confirmed: bool
    """Whether both ran once more at the end."""

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.speedup:.2f}x"
        how = "confirmed" if self.is_confirmed else "not confirmed"
        return f"{self.speedup:.2f}x ({self.low:.2f} to {self.high:.2f}, {how})"

    def __repr__(self) -> str:
        return f"Gain({self})"


class StudyResult:
    """Show a study as its record has it.

    result = StudyResult.load("zenithtune-out/megatron-lm-20261117-050000-000")
    print(result.gain, result.command)
    """

    def __init__(self, source: StudySource) -> None:
        self._digest = StudyDigest(source)
        self._view = source.view()

    @classmethod
    def load(cls, study: str | Path, *, db: str | Path | None = None, output_dir: str | Path | None = None) -> Self:
        """Return a study by its name, its folder or its study.json."""
        place = Path(output_dir) if output_dir is not None else None
        return cls(find_study(str(study), db=None if db is None else str(db), output_dir=place))

    @property
    def name(self) -> str:
        """The study's name."""
        return self._view.name

    @property
    def folder(self) -> Path | None:
        """The folder of its trials, where the record says it."""
        return self._view.folder

    @property
    def view(self) -> StudyView:
        """All that the record has of it."""
        return self._view

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Every run in order, the user's own command included; those that still run are left out."""
        return tuple(each.trial for each in self._view.trials if not each.is_running)

    @property
    def baseline(self) -> Trial | None:
        """The user's own command, as it counts; None where it did not run."""
        return self._view.baseline

    @property
    def best(self) -> Trial | None:
        """The best trial, the user's own command left out; None where every trial failed."""
        return self._view.best

    @property
    def command(self) -> str | None:
        """The fastest command, ready to paste; None where nothing went well."""
        return self._view.best_command

    @property
    def unit(self) -> str:
        """The unit of the values."""
        return self._view.unit

    @functools.cached_property
    def _verdict(self) -> Json:
        return verdict_object(self._view)

    @property
    def verdict(self) -> str:
        """What the study came to, in one sentence."""
        return str(self._verdict.get("sentence", ""))

    @property
    def stopped(self) -> str:
        """Why the study stopped; empty while it runs, or where its tuner was killed."""
        return self._view.search.stopped

    @property
    def gain(self) -> Gain | None:
        """How much faster the best trial is than the user's own command; None where there is nothing to compare."""
        found = self._verdict
        if found.get("speedup") is None:
            return None
        return Gain(
            speedup=float(found["speedup"]),
            low=found.get("low"),
            high=found.get("high"),
            is_confirmed=bool(found.get("is_confirmed")),
        )

    @functools.cached_property
    def _content(self) -> Json:
        return self._digest.object()

    def to_dataframe(self) -> pd.DataFrame:
        """Return every trial with its parameters and predictions, a row each, as `report --format csv` has them."""
        try:
            import pandas
        except ImportError as error:
            raise UsageError("to_dataframe needs pandas, which is not installed", hint="pip install pandas") from error
        columns, rows = trial_columns(self._content), list(trial_rows(self._content))
        return pandas.DataFrame(rows, columns=columns)

    def plot(self) -> StudyPlot:
        """Draw the value of every trial and the best so far; a notebook shows it, `save` writes it as SVG."""
        return study_plot(self._content)

    def __repr__(self) -> str:
        best = self.best
        found = f"best {format_value(best.value or 0.0, best.unit)}" if best is not None else "no best trial"
        gain = f", {self.gain}" if self.gain is not None else ""
        return f"StudyResult({self.name}: {len(self.trials)} runs, {found}{gain})"

    def _repr_html_(self) -> str:
        study = self._content
        sign = 1 if study["direction"] == "minimize" else -1
        order = sorted(study["trials"], key=lambda trial: (trial["value"] is None, sign * (trial["value"] or 0.0)))
        rows = [TrialRow.of_digest(trial).cells(*COLUMNS) for trial in order[:MAX_ROWS]]
        titles = [study["unit"] or "value" if name == "value and spread" else name for name in COLUMNS]
        command = f"<pre>{html.escape(self.command)}</pre>" if self.command else ""
        rest = f"<p>{len(order) - MAX_ROWS} more not shown.</p>" if len(order) > MAX_ROWS else ""
        heading = f"<p><b>{html.escape(self.name)}</b>: {html.escape(self.verdict)}</p>"
        return "".join([heading, command, self.plot().svg, html_table(titles, rows), rest])
