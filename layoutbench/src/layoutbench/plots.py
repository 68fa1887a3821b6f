"""Line plots as SVG, to stand within a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 900, 420, 64, 210, 40, 52
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#7f7f7f")
DASHES = ("", "7 4", "2 3")
"""Lines of one colour differ in their dashes."""


def line_plot(
    curves: Mapping[str, Sequence[float]], xs: Sequence[float], *, title: str, x_label: str, y_label: str
) -> str:
    """Return curves of shares, 0 to 1, over a logarithmic axis, as an SVG element with a legend; some may end early."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13"><title>{escape(title)}</title>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-weight="bold">{escape(title)}</text>',
        *_axes(xs, x_label, y_label),
    ]
    for row, (name, ys) in enumerate(curves.items()):
        parts += _curve(name, xs, ys, row)
    return "\n".join([*parts, "</svg>"])


def _x(value: float, xs: Sequence[float]) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * math.log(value / xs[0]) / math.log(max(xs[-1] / xs[0], 2))


def _y(share: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)


def _axes(xs: Sequence[float], x_label: str, y_label: str) -> list[str]:
    right, low, middle = WIDTH - RIGHT, HEIGHT - BOTTOM, (HEIGHT + TOP - BOTTOM) / 2
    parts = []
    for tick in (tick for tick in (1, 2, 5, 10, 20, 50, 100, 200, 500) if xs[0] <= tick <= xs[-1]):
        x = _x(tick, xs)
        parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{low}" stroke="#eee"/>')
        parts.append(f'<text x="{x:.1f}" y="{low + 18}" text-anchor="middle">{tick}</text>')
    for percent in range(0, 101, 20):
        y = _y(percent / 100)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{percent}%</text>')
    parts.append(f'<text x="{(LEFT + right) / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle">{escape(x_label)}</text>')
    turn = f'transform="rotate(-90 16 {middle:.0f})"'
    parts.append(f'<text x="16" y="{middle:.0f}" text-anchor="middle" {turn}>{escape(y_label)}</text>')
    return parts


def _curve(name: str, xs: Sequence[float], ys: Sequence[float], row: int) -> list[str]:
    points, before = [], ys[0]
    for x, y in zip(xs, ys, strict=False):
        points += [f"{_x(x, xs):.1f},{_y(before):.1f}", f"{_x(x, xs):.1f},{_y(y):.1f}"]
        before = y
    dash = DASHES[row // len(COLOURS) % len(DASHES)]
    stroke = f'stroke="{COLOURS[row % len(COLOURS)]}" stroke-dasharray="{dash}"'
    x, y = WIDTH - RIGHT + 14, TOP + 14 + 21 * row
    return [
        f'<polyline points="{" ".join(points)}" fill="none" {stroke} stroke-width="2"/>',
        f'<line x1="{x}" y1="{y - 4}" x2="{x + 24}" y2="{y - 4}" {stroke} stroke-width="3"/>',
        f'<text x="{x + 30}" y="{y}">{escape(name)}</text>',
    ]
