"""Where the marks of a study's plots stand, and what their legends say of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.report.browser.browsers import Browser
from tests.report.browser.pages import data
from zenith_tune.units import GIB

pytestmark = pytest.mark.slow


def middle(page: Browser, selector: str) -> list[float]:
    """Return where the middles of elements are, from the left."""
    found = page.run(
        "return [...document.querySelectorAll(arguments[0])].map((node) => node.getBoundingClientRect())"
        ".map((box) => box.x + box.width / 2)",
        selector,
    )
    return [float(x) for x in found]


def ticks(page: Browser, plot: str) -> dict[float, float]:
    """Return the ticks of a plot's lower axis: what they say, and where they are."""
    found = page.run(
        "return [...document.querySelectorAll(`${arguments[0]} text[text-anchor=middle]:not(.axis-name)`)]"
        ".filter((node) => /^[\\d.,]+$/.test(node.textContent)).map((node) => {"
        "const box = node.getBoundingClientRect(); return [node.textContent, box.x + box.width / 2] })",
        f"#plot-{plot}",
    )
    return {float(text.replace(",", "")): float(x) for text, x in found}


def at(page: Browser, plot: str, value: float) -> float:
    """Return where a value is on a plot's lower axis, by its ticks."""
    (low, from_px), (high, to_px) = list(ticks(page, plot).items())[:2]
    return from_px + (value - low) / (high - low) * (to_px - from_px)


def keys(page: Browser, section: str) -> list[str]:
    """Return the classes of the marks and lines that a legend has, in its order."""
    found: list[str] = page.run(
        "return [...document.querySelectorAll(`#${arguments[0]} .legend .swatch > *`)]"
        ".map((node) => [...node.classList].filter((name) => name !== 'mark').join(' '))",
        section,
    )
    return found


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Browser:
    browser.open(tmp_path, data("memory"))
    return browser


def test_a_trial_out_of_memory_stands_at_what_it_needed(page: Browser) -> None:
    assert middle(page, "#plot-memory path.oom:not(.least)") == [pytest.approx(at(page, "memory", 96.7), abs=1.5)]


def test_what_is_only_known_to_be_more_points_right_inside_the_band(page: Browser) -> None:
    band = page.run("return document.querySelector('#plot-memory .band').getBoundingClientRect()")
    bound, beyond = middle(page, "#plot-memory path.oom.least")
    assert band["left"] < bound < band["left"] + 20
    assert band["left"] + 20 < beyond < band["right"] + 6
    page.run(
        "const node = document.querySelector('#plot-memory path.oom.least');"
        "node.dispatchEvent(new MouseEvent('mousemove', {bubbles: true, clientX: 9, clientY: 9}))"
    )
    assert "80.0 GiB" in page.text("#tip")


def test_no_trial_out_of_memory_stands_among_those_that_fit(page: Browser) -> None:
    limit = at(page, "memory", 80.0)
    assert len(middle(page, "#plot-memory path.oom")) == 3
    assert min(middle(page, "#plot-memory path.oom")) > limit > max(middle(page, "#plot-memory circle.mark"))


def test_legends_name_the_marks_that_are_there_and_no_others(page: Browser, browser: Browser, tmp_path: Path) -> None:
    assert keys(page, "progress") == ["best-line", "best ok", "base ok", "ok", "oom", "cancelled"]
    assert keys(page, "memory") == ["best ok", "ok", "oom", "oom least"], "one that beats all is no line"
    for section in ("progress", "memory"):
        names = page.texts(f"#{section} .legend li")
        assert all(names) and len(set(names)) == len(names) == len(keys(page, section))
    looks = page.run("return [...document.querySelectorAll('#progress .swatch > *')].map((node) => node.outerHTML)")
    assert len(set(looks)) == len(looks) == 6
    browser.open(tmp_path, data("one"))
    assert keys(browser, "progress") == ["best-line", "best ok", "base ok"]
    browser.open(tmp_path, data("own"))
    assert keys(browser, "memory") == ["ok"]
    assert browser.count("#plot-memory path.oom") == 0


def test_a_cell_that_was_only_cancelled_is_not_one_that_failed(page: Browser) -> None:
    page.run(
        "for (const [axis, name] of [['x', 'tp'], ['y', 'mbs']]) {"
        "const list = document.querySelector(`[data-key=heat-${axis}]`); list.value = name;"
        "list.dispatchEvent(new Event('change')) }"
    )
    assert (page.count("#plot-heat .cell.failed"), page.count("#plot-heat .cell.stopped")) == (3, 1)
    assert "fail" in page.text("#heat figcaption") and "cancel" in page.text("#heat figcaption")
    content = data("study")
    content["trials"] = [trial for trial in content["trials"] if trial["value"] is not None]
    page.run("zenithtune.update(arguments[0])", content)
    assert "fail" not in page.text("#heat figcaption") and "cancel" not in page.text("#heat figcaption")


def test_the_curve_begins_at_the_own_command_and_ends_at_the_fastest(browser: Browser, tmp_path: Path) -> None:
    browser.open(tmp_path, data("study"))
    browser.tab("Plots")
    line = browser.run("return document.querySelector('#plot-progress .best-line').getBoundingClientRect()")
    own, best = (
        browser.run("return document.querySelector(arguments[0]).getBoundingClientRect()", f"#plot-progress .{kind}")
        for kind in ("base", "best.ok")
    )
    assert line["left"] == pytest.approx(own["left"] + own["width"] / 2, abs=1.5)
    assert line["bottom"] == pytest.approx(own["top"] + own["height"] / 2, abs=1.5)
    assert line["top"] == pytest.approx(best["top"] + best["height"] / 2, abs=1.5)


def test_where_the_own_command_is_the_fastest_it_alone_is_marked(browser: Browser, tmp_path: Path) -> None:
    browser.open(tmp_path, data("own"))
    browser.tab("Plots")
    assert "own command" in browser.text("h1")
    assert browser.count("#plot-progress rect.base.best") == 1 == browser.count("#plot-progress .best")
    line = browser.run("return document.querySelector('#plot-progress .best-line').getBoundingClientRect()")
    assert line["height"] == pytest.approx(0, abs=1.5)
    (own,) = (trial["label"] for trial in data("own")["trials"] if trial["is_baseline"])
    assert browser.texts("#table-trials tr.best td:nth-child(2)") == [own]
    content = {**data("study"), "fastest_is_baseline": True}
    browser.open(tmp_path, content)
    assert browser.count("#plot-parallel .thread.best") == 0
    assert "fastest" in browser.text("#parallel figcaption") and "thread best" not in keys(browser, "parallel")


def test_trials_stand_at_their_numbers_and_ticks_are_whole(browser: Browser, tmp_path: Path) -> None:
    browser.open(tmp_path, data("one"))
    browser.tab("Plots")
    assert list(ticks(browser, "progress")) == [0, 1]
    content = data("study")
    content["trials"] = [trial for trial in content["trials"] if trial["number"] not in (1, 2, 6)]
    browser.open(tmp_path, content)
    browser.tab("Plots")
    shown = middle(browser, "#plot-progress .mark")
    assert shown == pytest.approx([at(browser, "progress", each["number"]) for each in content["trials"]], abs=1.5)
    browser.open(tmp_path, {**data("compare")})
    assert list(ticks(browser, "progress")) == list(range(10))


def test_the_plot_of_a_plan_that_is_off_says_by_how_much_and_is_filled(browser: Browser, tmp_path: Path) -> None:
    content: dict[str, Any] = data("study")
    for trial in content["trials"]:
        if trial["predicted"] and trial["step_s"]:
            trial["predicted"] |= {"step_s": trial["step_s"] / 1.9, "step_interval_90_s": None}
    browser.open(tmp_path, content)
    browser.tab("Plots")
    assert "1.90×" in browser.text("#predicted figcaption") and "1.90×" in browser.text("#predicted .legend")
    assert "median-line" in keys(browser, "predicted") and "rule" not in keys(browser, "predicted")
    points = middle(browser, "#plot-predicted circle.mark")
    width = browser.run("return document.querySelector('#plot-predicted').getBoundingClientRect().width")
    assert max(points) - min(points) > 0.6 * width


def test_the_limit_is_drawn_at_the_gpus_memory(page: Browser) -> None:
    assert data("memory")["capacity_bytes"] == 80 * GIB
    assert middle(page, "#plot-memory .rule.bad") == [pytest.approx(at(page, "memory", 80.0), abs=1.5)]
