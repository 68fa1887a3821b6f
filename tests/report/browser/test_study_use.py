"""A study's page in use: the table, the command, the keyboard, what is read aloud, themes and widths."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.report.browser.browsers import Browser
from tests.report.browser.pages import data
from tests.report.studies import BEST, COMMAND

pytestmark = pytest.mark.slow
TAB, ENTER, RIGHT, END = "\ue004", "\ue007", "\ue014", "\ue010"
ROWS = "#table-trials tr.row"


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Browser:
    browser.open(tmp_path, data("study"))
    return browser


def numbers(page: Browser) -> list[str]:
    return [text.split()[-1] for text in page.texts(f"{ROWS} td:first-child")]


def test_the_headline_is_the_gain_how_sure_it_is_the_best_layout_its_command_and_what_it_cost(page: Browser) -> None:
    standing = data("study")["standing"]
    assert "1.22" in page.text("h1") and page.text("#winner") == "TP2 PP2 mbs1 full"
    assert f"{standing['low']:.2f}× to {standing['high']:.2f}×" in page.text("#verdict")
    gain, *others = page.texts("#headline .tile")
    assert "+22.0%" in gain and "50,000 to 61,000" in gain and len(others) == 3
    assert any(f"{standing['memory_share']:.0%}" in tile for tile in others)
    assert any(f"{standing['gpu_hours']:.2g}" in tile for tile in others)
    assert page.texts("#ties button") == [f"#{number}" for number in standing["ties"]]
    assert page.text("#headline .command pre") == f"{COMMAND} --trial {BEST}"


def test_a_headline_without_a_gain_says_so_and_a_cancelled_trial_has_not_failed(
    browser: Browser, tmp_path: Path
) -> None:
    content = {**data("study"), "fastest_is_baseline": True, "gain": -0.219, "num_cancelled": 1}
    content["trials"][-1]["state"] = "cancelled"
    browser.open(tmp_path, content)
    assert re.match(r"5 trials .*\b3 failed, 1 cancelled", browser.text("#progress figcaption"))
    assert browser.text("#headline .tile.lead b") == "none"
    assert "−21.9%" in browser.text("#headline .tile.lead span")
    assert "4 failed, 1 cancelled" in browser.text("#headline .tiles")


def test_the_table_sorts_both_ways_and_says_so(page: Browser) -> None:
    assert numbers(page) == [*map(str, range(10))]
    head = "#table-trials th:has([data-key=trials-sort-value])"
    page.click("[data-key=trials-sort-value]")
    assert numbers(page)[:3] == ["4", "8", "3"]
    assert page.one(head).get_attribute("aria-sort") == "descending"
    page.click("[data-key=trials-sort-value]")
    assert numbers(page)[:2] == ["1", "0"]
    assert page.one(head).get_attribute("aria-sort") == "ascending"
    assert page.count("#table-trials th[aria-sort=none]") == 8


def test_the_table_filters_by_words_and_by_state(page: Browser) -> None:
    page.tab("Trials")
    page.one("[data-key=trials-filter]").send_keys("tp2 ")
    assert numbers(page) == ["3", "4", "5"]
    page.click("[data-key=trials-only-oom]")
    assert numbers(page) == ["5"]
    assert "1 of 10 rows" in page.text("#trials")
    assert page.one("[data-key=trials-only-oom]").get_attribute("aria-pressed") == "true"


def test_a_row_opens_to_all_that_is_known_of_its_trial(page: Browser) -> None:
    page.click(f"[data-key=trials-row-{BEST}]")
    opened = page.text(f"#trials-detail-{BEST}")
    for part in (f"{COMMAND} --trial {BEST}", "34% chance of a gain", "command.sh, log.txt", "step 1 of 2", "mbs"):
        assert part in opened
    assert page.one(f"[data-key=trials-row-{BEST}]").get_attribute("aria-expanded") == "true"
    page.click(f"[data-key=trials-row-{BEST}]")
    assert page.count(f"#trials-detail-{BEST}") == 0


def test_a_click_on_a_mark_or_a_failure_opens_its_trial(page: Browser) -> None:
    page.run("document.querySelector('#plot-memory path.oom').dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    assert page.count("#trials-detail-2") == 1 and page.focused() == "trials-row-2"
    page.click("#failures [aria-label='Open trial 7']")
    assert page.count("#trials-detail-7") == 1 and page.focused() == "trials-row-7"


def test_the_command_is_copied_as_it_is(page: Browser) -> None:
    page.run("window.copied = []; navigator.clipboard.writeText = async (text) => { window.copied.push(text) }")
    page.click("[data-key=copy-best]")
    page.driver.execute_async_script("setTimeout(arguments[0], 50)")
    assert page.run("return window.copied") == [f"{COMMAND} --trial {BEST}"]
    assert page.text("[data-key=copy-best]") == "Copied"
    assert "copied" in page.text("#live")


def test_where_the_clipboard_is_closed_the_old_way_is_taken(page: Browser) -> None:
    page.run(
        "navigator.clipboard.writeText = () => Promise.reject(new Error('no'));"
        "document.execCommand = (name) => { window.copied = [name, document.activeElement.value]; return true }"
    )
    page.click("[data-key=copy-best]")
    page.driver.execute_async_script("setTimeout(arguments[0], 50)")
    assert page.run("return window.copied") == ["copy", f"{COMMAND} --trial {BEST}"]


def test_all_can_be_done_with_the_keyboard(page: Browser) -> None:
    page.press(TAB)
    assert page.run("return document.activeElement.className") == "skip"
    page.press(TAB)
    assert page.focused() == "theme"
    seen: list[str] = []
    for tab in ("Result", "Plots", "Trials"):
        page.tab(tab)
        page.run("document.querySelector('[role=tab][aria-selected=true]').focus()")
        while seen[-1:] not in (["BODY"], ["trials-row-0"]):
            page.press(TAB)
            seen.append(page.focused())
        seen.append(tab)
    wanted = ["copy-best", "plot-memory", "Result", "plot-progress", "heat-x", "plot-heat", "plot-parallel", "Plots"]
    wanted += ["trials-filter", "trials-row-0"]
    assert [key for key in seen if key in wanted] == wanted
    page.press(ENTER)
    assert page.count("#trials-detail-0") == 1 and page.focused() == "trials-row-0"


def test_arrow_keys_go_through_a_plot_and_enter_opens_the_trial(page: Browser) -> None:
    page.tab("Plots")
    page.run("document.querySelector('#plot-progress').focus()")
    page.press(RIGHT, RIGHT)
    assert page.text("#live").startswith("trial 1: mbs1 full")
    assert page.one("#tip").get_attribute("hidden") is None
    page.press(END)
    assert page.text("#live").startswith("trial 9:")
    page.press(ENTER)
    assert page.count("#trials-detail-9") == 1 and page.focused() == "trials-row-9"


def test_everything_has_a_name_to_be_read_aloud(page: Browser) -> None:
    nameless = page.run(
        "const named = 'button, input, select, a, svg.plot, section, table, nav, pre[tabindex]';"
        "const name = (e) => e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length"
        " || document.getElementById(e.getAttribute('aria-labelledby'));"
        "return [...document.querySelectorAll(named)].filter((e) => !e.closest('[hidden]') && !name(e))"
        ".map((e) => e.outerHTML.slice(0, 90))"
    )
    assert nameless == []
    assert page.count("svg.plot:not([aria-label])") == 0
    assert page.one("html").get_attribute("lang") == "en"
    assert page.run("return [...document.querySelectorAll('[id]')].map((e) => e.id).length") == page.run(
        "return new Set([...document.querySelectorAll('[id]')].map((e) => e.id)).size"
    )


def test_the_theme_can_be_turned_and_is_remembered(page: Browser) -> None:
    page.run("localStorage.clear(); delete document.documentElement.dataset.theme")
    page.driver.refresh()
    light = page.run("return getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    dark = page.run("return getComputedStyle(document.body).backgroundColor")
    assert light != dark and "light" in str(page.one("#theme").get_attribute("aria-label"))
    page.driver.refresh()
    assert page.run("return getComputedStyle(document.body).backgroundColor") == dark
    page.run("localStorage.clear()")


@pytest.mark.parametrize("width", [375, 768, 1280, 1920])
def test_no_width_needs_scrolling_sideways(browser: Browser, tmp_path: Path, width: int) -> None:
    browser.open(tmp_path, data("study"), width=width)
    browser.click(f"[data-key=trials-row-{BEST}]")
    assert browser.count("svg.plot") == 9
    for other in (width, 1100 if width < 1100 else 375):
        browser.resize(other)
        browser.driver.execute_async_script("setTimeout(arguments[0], 250)")
        for tab in browser.texts("[role=tab]"):
            browser.tab(tab)
            assert browser.overflow() <= 0, tab
