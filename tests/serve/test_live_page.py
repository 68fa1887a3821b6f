"""The page in a real browser: it follows the study by itself, and asks before it does anything."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.report.browser.browsers import Browser
from tests.report.hostile import write_hostile
from tests.report.studies import TRIALS, Recorded, header, multiplied, recorded
from tests.serve.served import Client, served
from tests.started_processes import wait_until
from zenith_tune.record.control import StudyControl
from zenith_tune.record.folder import StudyLock
from zenith_tune.record.search import StudySearch

pytestmark = pytest.mark.slow

ITERATION = " iteration {:8d}/     100 | elapsed time per iteration (ms): 500.0 | global batch size: 64 |\n"
STATE = "#live-state"


@pytest.fixture
def tuned(tmp_path: Path) -> Iterator[Recorded]:
    """A study of three trials and one that runs, held by a tuner."""
    study = Recorded(tmp_path / "out", "s", header(tmp_path)).run(TRIALS[:3])
    lock = StudyLock(tmp_path / "out" / "studies.db", "s")
    lock.acquire()
    study.start(TRIALS[3], log=ITERATION.format(1))
    yield study
    lock.release()


@pytest.fixture
def client(tuned: Recorded) -> Iterator[Client]:
    with served(tuned.folder.output_dir) as client:
        yield client


def show(browser: Browser, client: Client, path: str = "/") -> None:
    browser.resize(1280)
    browser.driver.get(client.base + path)
    # Lost when the page is loaded again.
    browser.run("window.isTheSamePage = true")


def is_hidden(browser: Browser, selector: str) -> bool:
    return bool(browser.run("return document.querySelector(arguments[0]).hidden", selector))


def test_what_happens_is_seen_without_loading_the_page_again(browser: Browser, tuned: Recorded, client: Client) -> None:
    show(browser, client)
    wait_until(lambda: browser.text(STATE) == "live")
    assert "Trial 3: TP2 mbs1 full" in browser.text("#live-trial-3")
    assert "iteration 1 · 0.5 s" in browser.text("#live-trial-3")
    browser.click("[data-key=trials-row-1]")
    with tuned.folder.trial(3).log.open("a") as log:
        log.write(ITERATION.format(2))
    wait_until(lambda: "iteration 2" in browser.text("#live-trial-3"))
    tuned.finish(3, TRIALS[3])
    tuned.start(TRIALS[4])
    wait_until(lambda: browser.count("#live-trial-4") == 1 and browser.count("#live-trial-3") == 0)
    wait_until(lambda: "TP2 mbs1 full" in browser.texts("#winner"))
    assert re.search(r"trial 3 .*ok, 55,000 tokens/s", browser.text("#live-news"))
    assert re.search(r"trial 3 .*best", browser.text("#live-news"))
    assert browser.count("#trials-detail-1") == 1, "an open row was closed"
    assert browser.run("return window.isTheSamePage") is True


def test_the_card_of_a_running_trial_keeps_up_with_its_log_and_has_one_clock(
    browser: Browser, tuned: Recorded, client: Client
) -> None:
    show(browser, client)
    box = "#running [data-log='3']"
    wait_until(lambda: browser.count(box) == 1)
    browser.run("document.querySelector(arguments[0]).isTheSameBox = true", box)
    long = "iteration 2/100 | " + "some field: 1.0 | " * 40 + "throughput per GPU (TFLOP/s/GPU): 197.3 |"
    with tuned.folder.trial(3).log.open("a") as log:
        log.write(f"{long}\n")
    wait_until(lambda: "TFLOP/s/GPU): 197.3" in browser.text(box))
    drawn_anew = "it waited for the page to be drawn"
    assert browser.run("return document.querySelector(arguments[0]).isTheSameBox", box) is True, drawn_anew

    def clocks() -> list[str]:
        both = browser.run(
            "const strip = document.querySelector('#live-trial-3 span').textContent.split(' · ').at(-1);"
            "return [strip, document.querySelector('#running [data-since]').textContent]"
        )
        return [str(clock) for clock in both]

    wait_until(lambda: int(clocks()[0].removesuffix("s")) >= 2)
    strip, card = clocks()
    assert strip == card


def test_the_bar_shows_how_far_the_study_is_and_the_time_left(
    browser: Browser, tuned: Recorded, client: Client
) -> None:
    tuned.record.keep_search(StudySearch(strategy="grid", max_trials=12, begun_s=1.0))
    show(browser, client)
    # Two trials of 9 and 2 seconds have ended.
    wait_until(lambda: browser.text("#live-pace") == "2 of at most 12 runs · at most 55s left")
    tuned.finish(3, TRIALS[3])
    wait_until(lambda: browser.text("#live-pace") != "2 of at most 12 runs · at most 55s left")
    assert browser.text("#live-pace").startswith("3 of at most 12 runs")
    wait_until(lambda: browser.run("return document.title").startswith("3/12 · +10%"))


def test_a_study_is_followed_from_before_its_first_trial(browser: Browser, tmp_path: Path) -> None:
    study = Recorded(tmp_path / "out", "s", header(tmp_path))
    lock = StudyLock(tmp_path / "out" / "studies.db", "s")
    lock.acquire()
    with served(tmp_path / "out") as client:
        show(browser, client)
        assert browser.text(STATE) == "live" and browser.text("h1").startswith("No trial")
        study.run(TRIALS[:2])
        wait_until(lambda: browser.count("#table-trials tr.row") == 2)
        assert browser.run("return window.isTheSamePage") is True
    lock.release()


def test_pause_is_asked_and_done(browser: Browser, tuned: Recorded, client: Client) -> None:
    show(browser, client)
    control = StudyControl(tuned.folder.control)
    browser.click("#live-pause")
    assert browser.one("#ask").get_attribute("open") is not None
    assert browser.one("#ask").aria_role == "dialog" and browser.one("#ask").accessible_name == "Pause the study?"
    browser.click("#ask-no")
    assert browser.count("#ask") == 0 and not control.is_paused()
    browser.click("#live-pause")
    browser.click("#ask-yes")
    wait_until(lambda: browser.text(STATE).startswith("pausing"))
    assert control.is_paused() and browser.text("#live-pause") == "Continue"
    wait_until(lambda: browser.count("#ask") == 0)
    browser.click("#live-pause")
    browser.click("#ask-yes")
    wait_until(lambda: browser.text(STATE) == "live")
    assert not control.is_paused()


def test_a_trial_is_cancelled_by_keys_alone(browser: Browser, tuned: Recorded, client: Client) -> None:
    from selenium.webdriver.common.keys import Keys

    show(browser, client)
    assert browser.one("#live-cancel-3").accessible_name == "Cancel trial 3"
    browser.run("document.getElementById('live-cancel-3').focus()")
    browser.press(Keys.ENTER)
    assert "TP2 mbs1 full" in browser.text("#ask-text")
    browser.press(Keys.ESCAPE)
    wait_until(lambda: browser.count("#ask") == 0)
    assert not tuned.folder.control.exists()
    assert browser.run("return document.activeElement.id") == "live-cancel-3"
    browser.press(Keys.ENTER, Keys.TAB, Keys.ENTER)
    wait_until(lambda: StudyControl(tuned.folder.control).is_cancelled(3))
    wait_until(lambda: "is being cancelled" in browser.text("#live-trial-3"))
    assert is_hidden(browser, "#live-cancel-3")


def test_what_cannot_be_asked_has_no_button(browser: Browser, tuned: Recorded, client: Client) -> None:
    show(browser, client)
    assert not is_hidden(browser, "#live-pause")
    tuned.folder.path.rename(tuned.folder.path.with_name("moved"))
    wait_until(lambda: is_hidden(browser, "#live-pause") and is_hidden(browser, "#live-cancel-3"))


def test_a_refused_request_is_shown_in_the_dialog(browser: Browser, tuned: Recorded, client: Client) -> None:
    show(browser, client)
    client.server.access.csrf = "another"
    browser.click("#live-pause")
    browser.click("#ask-yes")
    wait_until(lambda: "load it again" in browser.text("#ask .problem"))
    assert not tuned.folder.control.exists()
    assert ["403" in line for line in browser.complaints()] == [True]


def test_the_end_of_a_study_and_of_its_database_are_shown(browser: Browser, tmp_path: Path) -> None:
    study = Recorded(tmp_path / "out", "s", header(tmp_path)).run(TRIALS[:3])
    lock = StudyLock(tmp_path / "out" / "studies.db", "s")
    lock.acquire()
    with served(study.folder.output_dir) as client:
        show(browser, client)
        wait_until(lambda: browser.text(STATE) == "live")
        lock.release()
        wait_until(lambda: browser.text(STATE) == "ended: the study is over")
        assert is_hidden(browser, "#live-pause")
        (tmp_path / "out" / "studies.db").rename(tmp_path / "out" / "away.db")
        wait_until(lambda: browser.text(STATE).startswith("cannot be read: there is no database"))
        (tmp_path / "out" / "away.db").rename(tmp_path / "out" / "studies.db")
        wait_until(lambda: browser.text(STATE) == "ended: the study is over")


def test_a_server_that_comes_back_is_found_again(browser: Browser, tmp_path: Path) -> None:
    recorded(tmp_path / "out", TRIALS[:3])
    with served(tmp_path / "out") as client:
        port = client.server.port
        show(browser, client)
        before = browser.text(STATE)
    wait_until(lambda: browser.text(STATE) == "connection lost, trying again")
    with served(tmp_path / "out", port=port):
        wait_until(lambda: browser.text(STATE) == before)
    assert all("ERR_CONNECTION_REFUSED" in line or "ERR_INCOMPLETE" in line for line in browser.complaints())


def test_another_study_is_chosen_from_the_list(browser: Browser, tmp_path: Path) -> None:
    recorded(tmp_path / "out", TRIALS[:2], name="old")
    recorded(tmp_path / "out", TRIALS[:3], name="new")
    with served(tmp_path / "out") as client:
        show(browser, client)
        assert browser.texts("#live-studies option") == ["new", "old"]
        browser.run(
            "const list = document.getElementById('live-studies'); list.value = 'old';"
            "list.dispatchEvent(new Event('change'))"
        )
        wait_until(lambda: browser.driver.current_url.endswith("/?study=old"))
        wait_until(lambda: browser.text(".where") == "old – study")


def load_s(browser: Browser, root: Path, num_trials: int) -> float:
    """Load the page of a study of so many trials a few times, see that an end is drawn, and take the best time."""
    study = Recorded(root, "s", header(root)).run(TRIALS[:2])
    multiplied(root / "studies.db", num_trials)
    with served(root) as client:
        client.get("/")
        times_s = []
        for _ in range(3):
            begun = time.perf_counter()
            show(browser, client)
            times_s.append(time.perf_counter() - begun)
        assert browser.count("#plot-progress .mark") == num_trials
        number = study.start(TRIALS[4])
        study.finish(number, TRIALS[4])
        wait_until(lambda: browser.count("#plot-progress .mark") == num_trials + 1)
        browser.driver.get("about:blank")  # or the page would complain of the server that is gone
    return min(times_s)


def test_the_time_to_load_grows_no_faster_than_the_study(browser: Browser, tmp_path: Path) -> None:
    few_s, many_s = (load_s(browser, tmp_path / str(count), count) for count in (100, 500))
    assert many_s < 7.5 * few_s


def test_a_hostile_study_stays_text_and_a_narrow_window_holds_it(browser: Browser, tmp_path: Path) -> None:
    study = write_hostile(tmp_path / "out")
    with served(study.folder.output_dir) as client:
        show(browser, client)
        browser.resize(375)
        wait_until(lambda: browser.count("#live-running li") == 1)
        assert "<script>window.pwned=1</script>=2" in browser.text("#live-running li")
        assert browser.run("return document.querySelectorAll('#live-bar script, #live-bar img').length") == 0
        assert browser.run("return window.pwned") is None
        assert browser.overflow() <= 0
