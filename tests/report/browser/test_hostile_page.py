"""Hostile texts in a page: whatever they hold, they are read and not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.report.browser.browsers import Browser
from tests.report.browser.pages import data
from tests.report.hostile import CLOSING, IMAGE, LONG, SCRIPT

pytestmark = pytest.mark.slow


@pytest.fixture(params=[375, 1280])
def page(browser: Browser, tmp_path: Path, request: pytest.FixtureRequest) -> Browser:
    content: dict[str, Any] = data("hostile")
    content["name"] = content["title"] = f"{SCRIPT}{IMAGE}{LONG}"
    browser.open(tmp_path, content, width=request.param)
    for number in range(5):
        browser.click(f"[data-key=trials-row-{number}]")
    browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true })")
    browser.run(
        "document.querySelectorAll('.mark').forEach((mark) => "
        "mark.dispatchEvent(new MouseEvent('mousemove', {bubbles: true, clientX: 5, clientY: 5})))"
    )
    browser.driver.execute_async_script("setTimeout(arguments[0], 150)")
    return browser


def test_nothing_of_it_runs_or_becomes_an_element(page: Browser) -> None:
    assert page.run("return window.pwned") is None
    assert page.count("img, iframe, object, embed, form, main script, main style") == 0
    assert page.count("script") == 2
    assert page.run("return [...document.querySelectorAll('*')].filter((e) => e.hasAttribute('onload')).length") == 0


def test_it_is_there_as_text(page: Browser) -> None:
    assert IMAGE in page.text("#headline")
    assert CLOSING in page.text("#trials-detail-0 .command pre")
    assert SCRIPT in page.text("#trials-detail-3")
    assert f"{SCRIPT} {CLOSING}" in page.text("#failures .group")
    assert SCRIPT in page.driver.title


def test_nothing_of_it_turns_the_text_around_or_breaks_the_page(page: Browser) -> None:
    turning = "/[\\u202a-\\u202e\\u2066-\\u2069\\u001b]/.test(document.querySelector('main').textContent)"
    assert page.run(f"return {turning}") is False
    assert page.overflow() <= 0


def test_a_script_that_got_into_the_page_would_not_run(page: Browser) -> None:
    page.run(
        "const node = document.createElement('script'); node.textContent = 'window.pwned = 2';"
        "document.body.append(node)"
    )
    assert page.run("return window.pwned") is None
    assert [line for line in page.complaints() if "Content Security Policy" in line]
