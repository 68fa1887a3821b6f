"""What the first tab shows of a study with levers: before and after, where the gain comes from, what to try next."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.browser.browsers import Browser
from tests.report.browser.pages import Json, data

pytestmark = pytest.mark.slow
GAINS = [{"name": "TP 4 -> 2", "speedup": 1.1}, {"name": "manual_gc + overlap", "speedup": 1.1091}]
NEXT = [
    {"what": "Test fp8", "why": "it changes the numerics", "command": "zenithtune optimize --allow fp8 -- sh 'a b'"},
    {"what": "Test fused", "why": "it needs the package fused", "command": ""},
]
STEPS = [
    {"name": "yours", "number": 0, "parts_s": {"compute": 3.0, "tp": 2.24}},
    {"name": "best", "number": 4, "parts_s": {"compute": 3.0, "bubble": 1.2}},
]


def levered() -> Json:
    content = data("study")
    content["standing"] |= {"gains": GAINS, "changes": "TP 4 -> 2 (1.10x); + manual_gc, + overlap (1.11x)"}
    return {**content, "next": NEXT, "steps": STEPS, "diff": ["- --tp 4", "+ --tp 2", "+ --manual-gc"]}


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Browser:
    browser.open(tmp_path, levered())
    return browser


def test_the_diff_and_both_steps_are_in_view(page: Browser) -> None:
    assert page.texts("#diff del") == ["- --tp 4\n"] and len(page.texts("#diff ins")) == 2
    assert "TP 4 -> 2" in page.text("#changes")
    widths = page.run("return [...document.querySelectorAll('#plot-steps .part')].map((e) => e.width.baseVal.value)")
    assert sum(widths[:2]) / sum(widths[2:]) == pytest.approx(5.24 / 4.2, rel=0.01)
    assert page.texts("#headline .legend li") == ["compute", "TP", "bubble"]
    page.run("zenithtune.update(arguments[0])", {**levered(), "diff": ["+ --x"] * 40, "steps": []})
    assert page.count("#diff") == 0 and page.count("[data-key=fold-diff]") == 1 and page.count("#plot-steps") == 0


def test_a_waterfall_leads_from_the_own_command_to_the_best(page: Browser) -> None:
    bars = page.run("return [...document.querySelectorAll('#plot-gains .mark')].map((e) => e.getBoundingClientRect())")
    own, layout, levers, best = bars
    assert layout["left"] == pytest.approx(own["right"], abs=1.5)
    assert levers["left"] == pytest.approx(layout["right"], abs=1.5)
    assert best["right"] == pytest.approx(levers["right"], abs=1.5) and best["left"] == own["left"]
    texts = page.text("#plot-gains")
    assert all(text in texts for text in ("50,000", "1.10×", "1.11×", "61,000"))
    content = levered()
    content["standing"]["gains"] = []
    page.run("zenithtune.update(arguments[0])", content)
    assert page.one("#gains").get_attribute("hidden") is not None


def test_next_experiments_have_a_command_to_copy(page: Browser) -> None:
    page.run("window.copied = []; navigator.clipboard.writeText = async (text) => { window.copied.push(text) }")
    assert page.count("#next .next") == 2 and page.count("#next .command") == 1
    page.click("[data-key=copy-next-0]")
    page.driver.execute_async_script("setTimeout(arguments[0], 50)")
    assert page.run("return window.copied") == [NEXT[0]["command"]]


def test_the_frontier_joins_what_no_other_beats_in_both(page: Browser) -> None:
    box = page.run("return document.querySelector('#plot-memory .front-line').getBoundingClientRect()")
    marks = page.run(
        "return [...document.querySelectorAll('#plot-memory .mark.ok')].map((e) => e.getBoundingClientRect())"
    )
    best = page.run("return document.querySelector('#plot-memory .best').getBoundingClientRect()")
    assert box["top"] == pytest.approx((best["top"] + best["bottom"]) / 2, abs=1.5)
    assert box["left"] == pytest.approx(min((mark["left"] + mark["right"]) / 2 for mark in marks), abs=1.5)
    assert page.count("#memory .legend .front-line") == 1


def test_predictions_have_their_range(page: Browser) -> None:
    page.tab("Plots")
    ranges = [
        trial["predicted"]["step_interval_90_s"]
        for trial in levered()["trials"]
        if trial["step_s"] and trial["predicted"]
    ]
    assert page.count("#plot-predicted .range") == len(ranges) == 5
    assert "of 5 lie in their 90% range" in page.text("#predicted figcaption")


def test_plots_of_one_value_or_one_axis_are_left_out(browser: Browser, tmp_path: Path) -> None:
    browser.open(tmp_path, data("own"))
    hidden = browser.run("return [...document.querySelectorAll('section[hidden]')].map((node) => node.id)")
    assert {"importance", "heat", "parallel", "gains"} <= set(hidden)
    assert any("Parallel coordinates" in titles for titles in browser.texts("#unshown dt"))
