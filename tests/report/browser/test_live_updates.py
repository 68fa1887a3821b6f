"""A page that is given new data keeps what its reader has chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.browser.browsers import DESKTOP, Browser
from tests.report.browser.pages import data

pytestmark = pytest.mark.slow
READ = "document.querySelector('#parallel')"
"""The section that is at the top of the window."""


def test_a_running_trial_is_shown_with_its_log(browser: Browser, tmp_path: Path) -> None:
    browser.open(tmp_path, data("running"))
    assert "trial 4: TP2 PP2 mbs1 full" in browser.text("#running")
    assert "unfinished" in browser.text("#headline .tiles")
    assert "iteration 3/10" in browser.text("#running .log")


def test_new_data_is_drawn_and_what_was_chosen_stays(browser: Browser, tmp_path: Path) -> None:
    browser.open(tmp_path, data("running"))
    browser.click("[data-key=trials-sort-value]")
    browser.click("[data-key=trials-row-1]")
    browser.tab("Trials")
    browser.one("[data-key=trials-filter]").send_keys("mbs1")
    browser.run("zenithtune.update(arguments[0])", data("study"))
    assert browser.count("#plot-progress .mark") == 10
    assert browser.text("#winner") == "TP2 PP2 mbs1 full"
    assert browser.one("#panel-Trials").get_attribute("hidden") is None, "another tab was opened"
    assert browser.one("#running").get_attribute("hidden") is not None
    assert browser.count("#trials-detail-1") == 1
    assert [text.split()[-1] for text in browser.texts("#table-trials tr.row td:first-child")] == ["4", "8", "3", "1"]
    assert browser.one("[data-key=trials-filter]").get_attribute("value") == "mbs1"
    assert browser.focused() == "trials-filter"
    assert browser.run("return document.activeElement.selectionStart") == 4


def test_what_is_read_stays_where_it_is(browser: Browser, tmp_path: Path) -> None:
    browser.open(tmp_path, data("running"))
    browser.resize(DESKTOP, 300)
    browser.tab("Plots")
    browser.run(f"{READ}.scrollIntoView({{behavior: 'instant'}})")
    at = browser.run(f"return {READ}.getBoundingClientRect().top")
    browser.run("zenithtune.update(arguments[0])", data("study"))
    assert browser.run(f"return {READ}.getBoundingClientRect().top") == pytest.approx(at, abs=1)


def test_a_thousand_trials_load_in_two_seconds_and_stay_quick(browser: Browser, tmp_path: Path) -> None:
    content = data("thousand")
    browser.open(tmp_path, content)
    load_s = browser.work_s()
    assert browser.count("#plot-progress .mark") == 1000
    assert browser.text("#trials [role=status]") == "1,000 rows"
    assert browser.count("#table-trials tr.row") == 200
    assert load_s < 2.0
    for act in (
        "zenithtune.update(JSON.parse(document.getElementById('data').textContent))",
        "document.querySelector('[data-key=trials-sort-value]').click()",
        "document.querySelector('#table-trials tr.row button').click()",
    ):
        before = browser.work_s()
        browser.run(f"{act}; return document.body.offsetHeight")
        assert browser.work_s() - before < 1.0, act
    assert "1,000" in browser.text("[data-key=trials-more]")
    browser.click("[data-key=trials-more]")
    assert browser.count("#table-trials tr.row") == 1000
