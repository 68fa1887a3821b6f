"""Every page in both themes: contrast of all text, and what axe finds where it is installed."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from tests.report.browser.browsers import Browser
from tests.report.browser.pages import data
from tests.requirements import need_module

pytestmark = pytest.mark.slow
KINDS = ("study", "failed", "running", "plan", "compare", "studies")
LEAST = 4.5
"""The contrast of text that WCAG 2.2 asks for (AA)."""
OPEN_ALL = (
    "for (const each of document.querySelectorAll('details')) each.open = true;"
    "document.querySelector('tr.row button.open')?.click()"
)
# Each text with its colour and those behind it, the nearest first; what lies on a mark of a plot is left to eyes.
COLOURS = """
const texts = [...document.querySelectorAll('body *')].filter((e) => e.getClientRects().length
  && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())
  && !e.matches('.unseen, .skip, .cell-text, .bar-text, script, noscript, option'));
return texts.map((e) => {
  const behind = [];
  for (let at = e; at; at = at.parentElement) behind.push(getComputedStyle(at).backgroundColor);
  const style = getComputedStyle(e);
  return [e.textContent.trim().slice(0, 40), e.ownerSVGElement ? style.fill : style.color, behind];
})
"""
FINDINGS = """
const done = arguments[0];
axe.run(document, {resultTypes: ['violations']}).then((found) => done(
  found.violations.flatMap((each) => each.nodes.map((node) => `${each.id}: ${node.target.join(' ')}`))))
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_text_can_be_read(browser: Browser, tmp_path: Path, theme: str) -> None:
    for kind in KINDS:
        browser.open(tmp_path, data(kind), theme=theme)
        browser.run("localStorage.clear(); delete document.documentElement.dataset.theme")
        browser.run(OPEN_ALL)
        texts = browser.run(COLOURS)
        assert len(texts) > 10
        assert [found for found in texts if contrast(found[1], opaque(found[2])) < LEAST] == [], kind


def test_axe_finds_nothing(browser: Browser, tmp_path: Path) -> None:
    need_module("browser", "axe_core_python")
    axe = files("axe_core_python").joinpath("axe.min.js").read_text()
    for theme in ("light", "dark"):
        for kind in KINDS:
            browser.open(tmp_path, data(kind), theme=theme)
            browser.run(OPEN_ALL)
            browser.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": axe})
            assert browser.driver.execute_async_script(FINDINGS) == [], (kind, theme)


def opaque(behind: list[str]) -> str:
    """Return the colour that the nearest ones make over the first that nothing shines through."""
    layers: list[tuple[list[float], float]] = []
    for text in behind:
        parts = [float(part) for part in re.findall(r"[\d.]+", text)]
        whole = 255 if text.startswith("color(srgb") else 1
        layers.append(([part * whole for part in parts[:3]], parts[3] if len(parts) > 3 else 1.0))
        if layers[-1][1] == 1.0:
            break
    mixed = layers[-1][0]
    for colour, alpha in reversed(layers[:-1]):
        mixed = [part * alpha + under * (1 - alpha) for part, under in zip(colour, mixed, strict=True)]
    return str(mixed)


def contrast(front: str, back: str) -> float:
    """Return the contrast of two colours (WCAG 2.2)."""
    lights = []
    for text in (front, back):
        parts = [float(part) / 255 for part in re.findall(r"[\d.]+", text)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(lights) + 0.05) / (min(lights) + 0.05)
