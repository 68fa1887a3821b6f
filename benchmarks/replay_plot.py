"""A plot of curves over a logarithmic axis, written as SVG by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 64, 190, 40, 52
COLOURS = ("#0b6e4f", "#4f9d69", "#c8553d", "#7d8597", "#5e60ce", "#e09f3e", "#1d3557", "#9d4edd")
TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
STYLE = "font: 13px sans-serif; fill: #222"


def plot(curves: Mapping[str, Sequence[float]], *, title: str, x_label: str, y_label: str) -> str:
    """Return an SVG of curves whose points are at x = 1, 2, 3 ..., in percent of y = 1."""
    most = max(len(curve) for curve in curves.values())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" style="{STYLE}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-weight="bold">{escape(title)}</text>',
        *_axes(most, x_label, y_label),
    ]
    for row, (name, curve) in enumerate(curves.items()):
        parts += _curve(name, curve, most, row)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _x(trial: float, most: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * math.log(trial) / math.log(max(most, 2))


def _y(share: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)


def _axes(most: int, x_label: str, y_label: str) -> list[str]:
    right, low = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = []
    for tick in (tick for tick in TICKS if tick <= most):
        x = _x(tick, most)
        parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{low}" stroke="#eee"/>')
        parts.append(f'<text x="{x:.1f}" y="{low + 18}" text-anchor="middle">{tick}</text>')
    for percent in range(0, 101, 20):
        y = _y(percent / 100)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{percent}%</text>')
    middle = (TOP + low) / 2
    parts.append(f'<text x="{(LEFT + right) / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle">{escape(x_label)}</text>')
    turn = f'transform="rotate(-90 16 {middle:.0f})"'
    parts.append(f'<text x="16" y="{middle:.0f}" text-anchor="middle" {turn}>{escape(y_label)}</text>')
    return parts


def _curve(name: str, curve: Sequence[float], most: int, row: int) -> list[str]:
    """Return the steps of one curve, and its line of the legend."""
    points, before = [], curve[0]
    for trial, share in enumerate(curve, 1):
        points += [f"{_x(trial, most):.1f},{_y(before):.1f}", f"{_x(trial, most):.1f},{_y(share):.1f}"]
        before = share
    colour, x, y = COLOURS[row % len(COLOURS)], WIDTH - RIGHT + 14, TOP + 14 + 22 * row
    return [
        f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>',
        f'<line x1="{x}" y1="{y - 4}" x2="{x + 22}" y2="{y - 4}" stroke="{colour}" stroke-width="3"/>',
        f'<text x="{x + 28}" y="{y}">{escape(name)}</text>',
    ]
