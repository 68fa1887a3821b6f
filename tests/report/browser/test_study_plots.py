"""The plots of a study's page, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.report.browser.browsers import Browser
from tests.report.browser.pages import data
from tests.report.studies import BEST

pytestmark = pytest.mark.slow
NUM_OK, NUM_OOM, NUM_TRIALS = 5, 2, 9


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Browser:
    browser.open(tmp_path, data("study"))
    browser.tab("Plots")
    return browser


@pytest.mark.parametrize(
    ("plot", "marks"),
    [
        ("progress", NUM_TRIALS + 1),
        ("memory", NUM_OK + NUM_OOM),
        ("predicted", NUM_OK),
        ("parallel", NUM_TRIALS),
    ],
)
def test_every_plot_has_a_mark_for_each_trial_that_it_is_about(page: Browser, plot: str, marks: int) -> None:
    page.run("location.hash = arguments[0]", plot)
    assert page.count(f"#plot-{plot} .mark") == marks
    inside = page.run(
        "const box = document.querySelector(arguments[0]).getBoundingClientRect();"
        "return [...document.querySelectorAll(`${arguments[0]} .mark`)].every((mark) => {"
        "const own = mark.getBoundingClientRect();"
        "return own.left >= box.left - 9 && own.right <= box.right + 9 && own.bottom <= box.bottom && own.width > 0 })",
        f"#plot-{plot}",
    )
    assert inside


def test_the_marks_of_failed_trials_have_another_shape(page: Browser) -> None:
    assert page.count("#plot-progress circle.mark.ok") == NUM_OK
    assert page.count("#plot-progress rect.mark.base") == 1
    assert page.count("#plot-progress path.mark.oom") == NUM_OOM
    assert page.count("#plot-progress path.mark.error, #plot-progress path.mark.timeout") == 2
    assert page.count("#plot-memory path.mark.oom") == NUM_OOM
    assert "GPU 79.1 GiB" in page.text("#plot-memory")


def test_the_heat_map_has_a_cell_for_each_pair_and_other_axes_can_be_chosen(page: Browser) -> None:
    assert page.count("#plot-heat .cell") == 4 * 3
    assert page.count("#plot-heat .cell.mark") == 7
    assert "61,000" in page.text("#plot-heat")
    page.run(
        "const list = document.querySelector('[data-key=heat-y]'); list.value = 'mbs';"
        "list.dispatchEvent(new Event('change'))"
    )
    assert page.count("#plot-heat .cell") == 4 * 4
    assert "mbs" in str(page.one("#plot-heat").get_attribute("aria-label"))


def test_memory_can_be_compared_in_place_of_time(page: Browser) -> None:
    assert re.search(r"predicted .*time", page.text("#plot-predicted"))
    page.run(
        "const list = document.querySelector('[data-key=predicted]'); list.value = 'memory';"
        "list.dispatchEvent(new Event('change'))"
    )
    assert re.search(r"predicted .*memory", page.text("#plot-predicted"))
    assert page.count("#plot-predicted .mark") == NUM_OK


def test_the_best_layout_has_its_memory_by_stage_and_its_pipeline(page: Browser) -> None:
    layout = data("study")["best_layout"]
    parts = sum(part > 0 for stage in layout["stages"] for part in stage["parts"].values())
    assert page.count("#plot-stages rect.mark") == parts
    micro_batches = layout["timeline"]["shown_micro_batches"]
    assert micro_batches == 12
    assert page.count("#plot-timeline rect.forward") == 2 * micro_batches
    assert page.count("#plot-timeline rect.backward") == 2 * micro_batches
    assert "1F1B" in page.text("#timeline figcaption")


def test_what_a_mark_stands_for_is_shown_when_it_is_pointed_at(page: Browser) -> None:
    assert page.one("#tip").get_attribute("hidden") is not None
    page.run(
        "const mark = document.querySelector('#plot-progress .mark.best'); const box = mark.getBoundingClientRect();"
        "mark.dispatchEvent(new MouseEvent('mousemove', {bubbles: true, clientX: box.x, clientY: box.y}))"
    )
    assert page.text("#tip").splitlines()[:1] == [
        f"trial {BEST}: TP2 PP2 mbs1 full",
    ]
    assert re.match(r"61,000 tokens/s .*\+22\.0%", page.text("#tip").splitlines()[1])


def test_every_plot_is_also_a_table(page: Browser) -> None:
    plots = page.count("svg.plot")
    assert plots == 9
    page.run("document.querySelectorAll('figure details').forEach((each) => { each.open = true })")
    page.driver.execute_async_script("setTimeout(arguments[0], 50)")
    assert page.count("figure details table") == plots
    assert len(page.texts("#progress figure tbody tr")) == NUM_TRIALS + 1
    assert page.texts("#stages figure tbody tr td:first-child") == ["stage 0", "stage 1"]


def test_without_a_plan_the_page_says_why_in_a_line(browser: Browser, tmp_path: Path) -> None:
    browser.open(tmp_path, data("plain"))
    why = data("plain")["why_no_plan"]
    reasons = dict(zip(browser.texts("#unshown dt"), browser.texts("#unshown dd"), strict=True))
    (planned,) = (titles for titles, reason in reasons.items() if "model" in why and why in reason)
    assert planned.startswith("Predicted against measured") and "Diagnosis" in reasons
    assert browser.one("#predicted").get_attribute("hidden") is not None
    assert browser.one("#timeline").get_attribute("hidden") is not None
    assert browser.count("#plot-progress .mark") == NUM_TRIALS + 1


def test_failures_and_the_doctor_are_shown(page: Browser) -> None:
    assert page.texts("#failures .group b") == ["out of memory", "configuration", "timeout"]
    assert page.texts("#doctor .doctor")
    page.click("#failures [data-key='fold-failure-out of memory']")
    page.driver.execute_async_script("setTimeout(arguments[0], 50)")
    assert "OutOfMemoryError" in page.text("#failures .log")


@pytest.mark.parametrize("width", [375, 1280])
def test_names_of_parallel_axes_do_not_run_into_each_other(browser: Browser, tmp_path: Path, width: int) -> None:
    browser.open(tmp_path, data("study"), width=width)
    browser.tab("Plots")
    boxes = browser.run(
        "return [...document.querySelectorAll('#plot-parallel .axis-name')].map((node) => node.getBoundingClientRect())"
    )
    pairs = [(one, other) for at, one in enumerate(boxes) for other in boxes[at + 1 :]]
    assert pairs and not [
        (one, other)
        for one, other in pairs
        if one["left"] < other["right"]
        and other["left"] < one["right"]
        and one["top"] < other["bottom"] - 2
        and other["top"] < one["bottom"] - 2
    ]


def test_a_part_of_a_plot_is_chosen_by_dragging_buttons_and_keys(page: Browser) -> None:
    def seen() -> int:
        return page.count("#plot-progress .mark")

    whole = seen()
    page.drag("#plot-progress", -0.1, 0.1)
    numbers = [int(text) for text in page.texts("#plot-progress text") if text.isdigit()]
    assert 1 < seen() < whole and max(numbers) < NUM_TRIALS and page.count("#trials .detail") == 0
    page.click("[data-key='zoom-Show all-progress']")
    assert seen() == whole
    page.click("[data-key='zoom-+-progress']")
    assert seen() < whole
    page.click("[data-key='zoom-−-progress']")
    assert seen() == whole
    page.run("document.querySelector('#plot-progress').focus()")
    page.press("+")
    assert seen() < whole and page.focused() == "plot-progress"
    page.run("zenithtune.update(arguments[0])", data("study"))
    assert seen() < whole, "new data shows all again"
    page.press("0")
    assert seen() == whole


def test_it_shows_when_each_trial_ran_and_what_each_option_does(browser: Browser, tmp_path: Path) -> None:
    content = data("study")
    for number, trial in enumerate(content["trials"]):
        trial |= {"started_s": content["started_s"] + 10 * (number // 2), "gpu_utilization": 0.92, "gpu_power_w": 611.0}
        trial["ended_s"] = trial["started_s"] + 9
        if trial["value"] is not None:
            trial["value"] = 50_000.0 + 5_000.0 * trial["parameters"].get("tp", 0) + number
    browser.open(tmp_path, content)
    bars = browser.run("return [...document.querySelectorAll('#plot-when .mark')].map((bar) => bar.getAttribute('y'))")
    assert len(bars) == NUM_TRIALS + 1 and len(set(bars)) == 2, "two at once stand in two lanes"
    assert browser.texts("#plot-importance .axis-name")[1] == "tp"
    browser.click("[data-key=trials-row-1]")
    assert {"92%", "611 W"} <= set(browser.texts("#trials-detail-1 dd"))
