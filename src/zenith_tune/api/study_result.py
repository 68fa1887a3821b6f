"""A study that has run, or still runs, as a program sees it: its best, gain, command and trials, and a plot of them."""

from __future__ import annotations

import functools
import html
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from zenith_tune.notebook import data_frame, html_table
from zenith_tune.record.source import StudySource, find_study
from zenith_tune.record.view import StudyView
from zenith_tune.report.study_digest import StudyDigest, verdict_object
from zenith_tune.report.study_markdown import best_first, trial_columns, trial_rows
from zenith_tune.report.trial_row import trial_cells
from zenith_tune.study.files import Json, write_output
from zenith_tune.study.trial import Trial
from zenith_tune.units import format_value

if TYPE_CHECKING:
    import pandas as pd


WIDTH, HEIGHT = 640, 280
LEFT, RIGHT, TOP, BOTTOM = 90, 16, 28, 40
TRIAL, BEST, OWN = "#0072b2", "#d55e00", "#767676"
"""Blue and vermilion of Okabe and Ito, distinct to people with any colour vision, and a grey."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlot:
    """A picture of a study, which a notebook shows by itself."""

    svg: str

    def save(self, path: str | Path) -> Path:
        """Write the picture to a file, and return its path."""
        write_output(Path(path), self.svg)
        return Path(path)

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"StudyPlot({WIDTH}x{HEIGHT}, {len(self.svg)} characters of SVG)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """The scales of a picture."""

    numbers: tuple[int, int]
    values: tuple[float, float]

    def x(self, number: float) -> float:
        """Return the place of a trial."""
        low, high = self.numbers
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (number - low) / max(high - low, 1), 1)

    def y(self, value: float) -> float:
        """Return the place of a value; the larger is the higher."""
        low, high = self.values
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / ((high - low) or 1.0), 1)


def study_plot(study: Json) -> StudyPlot:
    """Draw a study's digest."""
    trials = [trial for trial in study["trials"] if trial["value"] is not None]
    if not trials:
        return StudyPlot(svg=_drawing(study, [_text(WIDTH / 2, HEIGHT / 2, "no trial has a value", anchor="middle")]))
    values = [trial["value"] for trial in trials]
    margin = 0.08 * ((max(values) - min(values)) or abs(values[0]) or 1.0)
    numbers = [trial["number"] for trial in study["trials"]]
    axes = Axes(numbers=(min(numbers), max(numbers)), values=(min(values) - margin, max(values) + margin))
    points = [_point(axes, trial) for trial in trials]
    return StudyPlot(svg=_drawing(study, [*_ticks(axes, values), _best_line(axes, study), *points]))


def _drawing(study: Json, parts: list[str]) -> str:
    title = f"{study['name']}: {study['unit'] or 'value'} of each trial"
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    style = 'font-family="sans-serif" font-size="12" fill="#333333" role="img"'
    frame = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    heading = _text(LEFT, 18, title)
    label = _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "trial", anchor="middle")
    inside = "".join([f"<title>{html.escape(title)}</title>", frame, heading, label, *parts])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{inside}</svg>'


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _ticks(axes: Axes, values: list[float]) -> list[str]:
    levels = sorted({min(values), max(values)})
    lines = [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{axes.y(level)}" y2="{axes.y(level)}" stroke="#dddddd"/>'
        + _text(LEFT - 8, axes.y(level) + 4, format_value(level), anchor="end")
        for level in levels
    ]
    return [*lines, *(_text(axes.x(n), HEIGHT - BOTTOM + 16, str(n), anchor="middle") for n in {*axes.numbers})]


def _best_line(axes: Axes, study: Json) -> str:
    """Draw the best so far as steps, up to the last trial."""
    steps: list[str] = []
    for number, value in study["progress"]:
        steps.append(f"H {axes.x(number)} V {axes.y(value)}" if steps else f"M {axes.x(number)} {axes.y(value)}")
    if not steps:
        return ""
    path = " ".join([*steps, f"H {axes.x(axes.numbers[1])}"])
    return f'<path d="{path}" fill="none" stroke="{BEST}" stroke-width="2"/>'


def _point(axes: Axes, trial: Json) -> str:
    """Draw a trial with its name as its tooltip; the user's own command is a square."""
    x, y = axes.x(trial["number"]), axes.y(trial["value"])
    tip = f"<title>{html.escape(trial['label'])}: {format_value(trial['value'])}</title>"
    if trial["is_baseline"]:
        return f'<rect x="{x - 5:g}" y="{y - 5:g}" width="10" height="10" fill="{OWN}">{tip}</rect>'
    return f'<circle cx="{x}" cy="{y}" r="5" fill="{TRIAL}">{tip}</circle>'


MAX_ROWS = 10
"""Rows of the table that a notebook shows."""
COLUMNS = ("trial", "layout", "state", "value and spread", "gain", "step", "memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """The gain of the best trial over the user's own command.

    >>> print(Gain(speedup=1.48, low=1.47, high=1.49, is_confirmed=True))
    1.48x (1.47 to 1.49, confirmed)
    """

    speedup: float
    """The speed relative to the own command: 1.48 is 48% faster; 1.0 where nothing is faster."""
    low: float | None
    high: float | None
    """The ends of the 90% interval; None where there is no gain."""
    is_confirmed: bool
    """Whether it held when runs were repeated."""
    is_clear: bool = False
    """Whether it is many times the noise, so that none had to be."""

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.speedup:.2f}x"
        if self.low <= 1:
            return f"no gain beyond the noise ({self.speedup:.2f}x measured)"
        how = "confirmed" if self.is_confirmed else "far beyond the noise" if self.is_clear else "not confirmed"
        return f"{self.speedup:.2f}x ({self.low:.2f} to {self.high:.2f}, {how})"

    def __repr__(self) -> str:
        return f"Gain({self})"


class StudyResult:
    """A study as its record has it.

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
        """The whole record of the study."""
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
    def changes(self) -> str:
        """What that command has in place of the user's own, in one line."""
        return str(self._content["standing"]["changes"])

    @property
    def diff(self) -> list[str]:
        """Its options and arguments that differ from the user's own command, as `diff` writes them."""
        return list(self._content["diff"])

    @property
    def unit(self) -> str:
        """The unit of the values."""
        return self._view.unit

    @functools.cached_property
    def _verdict(self) -> Json:
        return verdict_object(self._view)

    @property
    def verdict(self) -> str:
        """The verdict, in one sentence."""
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
            is_clear=bool(found.get("is_clear")),
        )

    @functools.cached_property
    def _content(self) -> Json:
        return self._digest.object()

    def to_dataframe(self) -> pd.DataFrame:
        """Return every trial with its parameters and predictions, a row each, as `report --format csv` has them."""
        return data_frame(trial_rows(self._content), trial_columns(self._content))

    def plot(self) -> StudyPlot:
        """Draw the value of every trial and the best so far; a notebook shows it, `save` writes it as SVG."""
        return study_plot(self._content)

    def __repr__(self) -> str:
        best = self.best
        found = f"best {format_value(best.value or 0.0, best.unit)}" if best is not None else "no best trial"
        gain = f", {self.gain}" if self.gain is not None else ""
        return f"StudyResult({self.name}: {self._view.study.what_ran}, {found}{gain})"

    def _repr_html_(self) -> str:
        study = self._content
        order = best_first(study)
        rows = [trial_cells(trial, *COLUMNS) for trial in order[:MAX_ROWS]]
        titles = [study["unit"] or "value" if name == "value and spread" else name for name in COLUMNS]
        command = f"<pre>{html.escape(self.command)}</pre>" if self.command else ""
        rest = f"<p>{len(order) - MAX_ROWS} more not shown.</p>" if len(order) > MAX_ROWS else ""
        heading = f"<p><b>{html.escape(self.name)}</b>: {html.escape(self.verdict)}</p>"
        return "".join([heading, command, self.plot().svg, html_table(titles, rows), rest])
