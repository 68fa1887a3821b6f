"""A study as one picture: the value of every trial, and the best so far, as an SVG that needs no other package."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path

from zenith_tune.study.files import Json, write_output
from zenith_tune.units import format_value

WIDTH, HEIGHT = 640, 280
LEFT, RIGHT, TOP, BOTTOM = 90, 16, 28, 40
TRIAL, BEST, OWN = "#0072b2", "#d55e00", "#767676"
"""Blue and vermilion of Okabe and Ito, which people with any colour vision tell apart, and a grey."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlot:
    """Hold the picture; a notebook shows it by itself."""

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
    """Hold how numbers of trials and values become places of the picture."""

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
    return StudyPlot(svg=_drawing(study, [*_ticks(axes, values), _best_line(axes, study), *_points(axes, trials)]))


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


def _points(axes: Axes, trials: list[Json]) -> list[str]:
    """Draw the trials, each with what it is as its tooltip; the user's own command is a square."""
    return [_point(axes.x(trial["number"]), axes.y(trial["value"]), trial) for trial in trials]


def _point(x: float, y: float, trial: Json) -> str:
    tip = f"<title>{html.escape(trial['label'])}: {format_value(trial['value'])}</title>"
    if trial["is_baseline"]:
        return f'<rect x="{x - 5:g}" y="{y - 5:g}" width="10" height="10" fill="{OWN}">{tip}</rect>'
    return f'<circle cx="{x}" cy="{y}" r="5" fill="{TRIAL}">{tip}</circle>'
