"""The pages of a plan and of two studies, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.report.browser.browsers import Browser
from tests.report.browser.pages import data

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("width", [375, 768, 1280, 1920])
@pytest.mark.parametrize("kind", ["plan", "compare"])
def test_no_width_needs_scrolling_sideways(browser: Browser, tmp_path: Path, kind: str, width: int) -> None:
    browser.open(tmp_path, data(kind), width=width, theme="dark")
    assert browser.overflow() <= 0


def test_a_plan_is_ranked_and_each_layout_opens_to_its_breakdown(browser: Browser, tmp_path: Path) -> None:
    content = data("plan")
    browser.open(tmp_path, content)
    assert browser.text("h1") == content["best"][0]["name"]
    assert browser.texts("#table-layouts tr.row td:nth-child(2)") == [layout["name"] for layout in content["best"]]
    browser.click("[data-key=layouts-row-1]")
    assert "compute" in browser.text("#layouts-detail-1") and "optimizer" in browser.text("#layouts-detail-1")
    browser.click("[data-key=layouts-sort-memory]")
    least = min(content["best"], key=lambda layout: float(layout["memory_bytes"]))
    assert browser.texts("#table-layouts tr.row td:nth-child(2)")[0] == least["name"]


def test_the_plots_of_a_plan_are_drawn(browser: Browser, tmp_path: Path) -> None:
    content = data("plan")
    browser.open(tmp_path, content)
    assert browser.count("#plot-front .mark") == len(content["best"]) + len(content["near_misses"])
    parts = sum(part > 0 for layout in content["best"] for part in layout["time_parts_s"].values())
    assert browser.count("#plot-times rect.mark") == parts
    assert browser.count("#plot-timeline rect.forward") == len(content["best_layout"]["timeline"]["bars"]) / 2
    assert browser.count("#plot-stages rect.mark") > 4 * content["best_layout"]["timeline"]["num_stages"]
    assert len(browser.texts("#misses .group")) == len(content["near_misses"])
    assert f"{content['num_considered']:,}" in browser.text("#dropped")


def test_two_studies_stand_side_by_side(browser: Browser, tmp_path: Path) -> None:
    browser.open(tmp_path, data("compare"))
    assert re.match(r"t\b.* 10\.0% faster .*\bs\b", browser.text("h1"))
    assert browser.count("#plot-progress .mark.ok") == 3
    assert browser.count("#plot-progress .mark.other") == 2
    assert browser.texts("#differences tbody td") == ["evaluator", "megatron tokens", "other"]
    assert browser.texts("#table-common tr.row td:last-child") == ["+10.0%", "+0.0%"]


def test_a_study_in_which_all_failed_begins_with_the_causes(browser: Browser, tmp_path: Path) -> None:
    content = data("failed")
    browser.open(tmp_path, content)
    assert browser.texts("#headline .group b") == [group["kind"] for group in content["failures"]]
    groups, tiles = ("document.querySelector('#headline .group')", "document.querySelector('#headline .tiles')")
    assert browser.run(f"return {groups}.getBoundingClientRect().bottom < {tiles}.getBoundingClientRect().top")
    assert browser.one("#failures").get_attribute("hidden") is not None
    browser.click("#headline .group button")
    assert browser.count("#trials .detail") == 1


def test_all_studies_are_listed_with_links_to_their_pages(browser: Browser, tmp_path: Path) -> None:
    content = data("studies")
    browser.open(tmp_path, content, width=375)
    assert browser.overflow() <= 0
    names = browser.texts("#table-studies tr.row td:first-child")
    assert sorted(names) == sorted(study["name"] for study in content["studies"])
    assert [link for study in content["studies"] if (link := study["href"])] == ["report.html"]
    assert browser.texts("#table-studies a") == ["s"]
    assert "+22.0%" in browser.texts("#table-studies td")


def test_a_plan_says_what_to_run(browser: Browser, tmp_path: Path) -> None:
    content = data("plan")
    content["emitted"] = {"format": "megatron", "file_name": "run.sh", "text": "torchrun it", "notes": ["a note"]}
    browser.open(tmp_path, content)
    script, tune = browser.texts("#headline .command pre")
    assert script == "torchrun it" and tune.endswith("-- bash run.sh")
    notes = browser.texts("#misses .note")
    assert all(miss["hint"] in note for miss, note in zip(content["near_misses"], notes, strict=True))
    browser.run("zenithtune.update(arguments[0])", {**content, "emitted": None})
    assert browser.count("#headline .command") == 0
    assert browser.count("#headline dl.pairs dt") == len(content["best"][0]["layout"])
