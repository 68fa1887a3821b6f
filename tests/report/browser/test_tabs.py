"""The tabs of a study's page: by mouse, keys, links and on paper, and what each leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.browser.browsers import Browser
from tests.report.browser.pages import data

pytestmark = pytest.mark.slow
LEFT, RIGHT, END = "\ue012", "\ue014", "\ue010"


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Browser:
    browser.open(tmp_path, data("study"))
    return browser


def selected(page: Browser) -> list[str]:
    """Return the tabs that say they are open, and of the panels those that can be seen."""
    seen = page.run(
        "return [...document.querySelectorAll('[role=tabpanel]')].filter((e) => e.offsetHeight)"
        ".map((e) => document.getElementById(e.getAttribute('aria-labelledby')).textContent)"
    )
    return [*page.texts("[role=tab][aria-selected=true]"), *map(str, seen)]


def test_arrow_keys_go_through_the_tabs_and_the_tab_key_leaves_them(page: Browser) -> None:
    names = page.texts("[role=tablist] [role=tab]")
    assert selected(page) == [names[0], names[0]]
    page.run("document.querySelector('[role=tab]').focus()")
    page.press(RIGHT)
    assert selected(page) == [names[1], names[1]] and page.focused() == f"tab-{names[1]}"
    page.press(END)
    assert selected(page) == [names[-1], names[-1]]
    page.press(RIGHT, LEFT)
    assert selected(page) == [names[-2], names[-2]]
    assert page.run("return location.hash") == f"#{names[-2].lower()}"
    assert page.count("[role=tab][tabindex='0']") == 1


@pytest.mark.parametrize(
    ("link", "tab"), [("trials", "Trials"), ("search", "Search"), ("timeline", "Plots"), ("%zz", "Result")]
)
def test_a_link_opens_the_tab_that_it_names_or_that_its_section_is_in(page: Browser, link: str, tab: str) -> None:
    address = page.driver.current_url
    page.driver.get("about:blank")
    page.driver.get(f"{address}#{link}")
    assert selected(page) == [tab, tab]
    page.run("location.hash = 'result'")
    page.driver.execute_async_script("setTimeout(arguments[0], 50)")
    assert selected(page) == ["Result", "Result"]
    page.run("location.hash = arguments[0]", "heat")
    page.driver.execute_async_script("setTimeout(arguments[0], 50)")
    assert abs(page.run("return document.querySelector('#heat').getBoundingClientRect().top")) < 900


def test_on_paper_all_is_shown(page: Browser) -> None:
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    heights = page.run(
        "return [...document.querySelectorAll('section.card:not([hidden])')].map((node) => node.offsetHeight)"
    )
    tabs = page.run("return document.querySelector('[role=tablist]').offsetHeight")
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert len(heights) > 10 and min(heights) > 40 and tabs == 0


def test_new_data_leaves_the_tab_open_and_a_tab_without_content_is_not_offered(page: Browser) -> None:
    page.tab("Search")
    page.run("zenithtune.update(arguments[0])", data("running"))
    assert selected(page) == ["Search", "Search"]
    content = data("study")
    for trial in content["trials"]:
        trial["started_s"] = None
    page.run("zenithtune.update(arguments[0])", {**content, "findings": []})
    assert selected(page) == ["Result", "Result"]
    assert page.run("return document.querySelector('#tab-Search').offsetHeight") == 0
