"""How pages fill a window: no holes between cards, nothing cut in half, nothing too small to be seen."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.report.browser.browsers import Browser
from tests.report.browser.pages import data

pytestmark = pytest.mark.slow
CARDS = (
    "return [...document.querySelectorAll('.grid:not([hidden]) > section.card:not([hidden])')]"
    ".map((node) => node.getBoundingClientRect())"
)


@pytest.mark.parametrize("width", [1440, 1920])
@pytest.mark.parametrize("kind", ["study", "running", "plain", "memory", "own", "one", "plan", "compare"])
def test_every_row_of_cards_is_full_and_of_one_height(browser: Browser, tmp_path: Path, kind: str, width: int) -> None:
    browser.open(tmp_path, data(kind), width=width)
    for tab in browser.texts("[role=tab]:not([hidden])") or [""]:
        if tab:
            browser.tab(tab)
        rows: dict[int, list[Any]] = {}
        for box in browser.run(CARDS):
            rows.setdefault(round(box["top"]), []).append(box)
        whole = max(sum(box["width"] for box in row) for row in rows.values())
        assert whole > min(width, 1440) - 100
        assert [row for row in rows.values() if sum(box["width"] for box in row) < whole - 40] == []
        assert [row for row in rows.values() if max(b["height"] for b in row) - min(b["height"] for b in row) > 1] == []


def test_a_card_finds_its_place_when_its_neighbour_goes(browser: Browser, tmp_path: Path) -> None:
    content = data("study")
    for trial in content["trials"]:
        trial["value"] = trial["value"] and 50_000.0 + 5_000.0 * trial["parameters"].get("tp", 0) + trial["number"]
    browser.open(tmp_path, content, width=1440)
    browser.tab("Plots")
    half = browser.run("return document.querySelector('#progress').getBoundingClientRect().width")
    trials = [{**trial, "predicted": None} for trial in content["trials"]]
    browser.run("zenithtune.update(arguments[0])", {**content, "trials": trials, "parameters": [], "best_layout": None})
    card, plot = (
        browser.run("return document.querySelector(arguments[0]).getBoundingClientRect().width", selector)
        for selector in ("#progress", "#plot-progress")
    )
    assert card > 1.9 * half and plot > 0.9 * card
    assert browser.run("return document.querySelector('#plot-progress').viewBox.baseVal.width") == pytest.approx(
        plot, abs=1
    )
    browser.run("zenithtune.update(arguments[0])", content)
    assert browser.run("return document.querySelector('#progress').getBoundingClientRect().width") == half


def decisive(name: str) -> dict[str, Any]:
    """Return a study of seven parameters, of which the last alone decides."""
    content = data("study")
    trials = []
    for at in range(24):
        others = {f"p{index}": (at * (index + 1) // 3) % (2 + index % 2) for index in range(6)}
        value = (60_000.0 if at % 2 else 40_000.0) + at
        parameters = {**others, name: "fast" if at % 2 else "slow"}
        trials.append({**content["trials"][4], "number": at, "value": value, "parameters": parameters})
    return {**content, "trials": trials, "parameters": list(trials[0]["parameters"]), "best": 23, "best_run": 23}


def test_a_narrow_window_keeps_the_parameters_that_matter(browser: Browser, tmp_path: Path) -> None:
    browser.open(tmp_path, decisive("zzz"), width=375)
    shown = browser.texts("#plot-parallel .axis-name")
    assert "zzz" in shown and len(shown) < 7
    assert re.findall(r"\d+", browser.text("#parallel figcaption")) == [str(len(shown) - 1), "7"]


def test_lines_are_coloured_by_value_and_the_best_is_bold(browser: Browser, tmp_path: Path) -> None:
    browser.open(tmp_path, data("study"), width=1440)
    lines = browser.run(
        "return [...document.querySelectorAll('#plot-parallel .thread:not(.failed)')].map((node) => {"
        "const style = getComputedStyle(node); return [style.stroke, parseFloat(style.strokeWidth)] })"
    )
    assert len({stroke for stroke, _ in lines}) == len(lines) == 5
    assert lines[-1][1] == max(width for _, width in lines) > 2 * sorted(width for _, width in lines)[-2] - 0.1
    assert browser.count("#parallel .legend .ramp") == 1


@pytest.mark.parametrize("width", [375, 1440])
def test_the_names_of_parallel_axes_begin_at_one_height(browser: Browser, tmp_path: Path, width: int) -> None:
    browser.open(tmp_path, decisive("recompute_granularity"), width=width)
    tops = browser.run(
        "return [...document.querySelectorAll('#plot-parallel .axis-name')].map((node) => node.getBBox().y)"
    )
    assert len({round(top) for top in tops}) == 1


def test_a_value_is_cut_only_where_there_is_no_room(browser: Browser, tmp_path: Path) -> None:
    content = data("study")
    for trial in content["trials"]:
        trial["parameters"]["recompute"] = "full/block1" if trial["number"] % 2 else "selective/uniform"
    content["parameters"].append("recompute")
    browser.open(tmp_path, content, width=1440)
    texts = browser.texts("#plot-parallel text")
    assert "full/block1" in texts and "selective/uniform" in texts


def test_the_blocks_of_a_long_pipeline_can_be_seen_on_a_phone(browser: Browser, tmp_path: Path) -> None:
    browser.open(tmp_path, data("plan"), width=375)
    widths = browser.run(
        "return [...document.querySelectorAll('#plot-timeline .forward, #plot-timeline .backward')]"
        ".map((node) => node.getBoundingClientRect().width).sort((a, b) => a - b)"
    )
    assert widths[len(widths) // 2] >= 4
    assert browser.overflow() <= 0
    assert "12 of 256 micro-batches" in browser.text("#timeline figcaption")


@pytest.mark.parametrize("width", [375, 1440])
def test_no_line_of_a_long_command_is_cut_in_half(browser: Browser, tmp_path: Path, width: int) -> None:
    content = data("study")
    content["best_command"] = " ".join(["python train.py", *(f"--an-option-of-some-length-{n} {n}" for n in range(60))])
    browser.open(tmp_path, content, width=width)
    seen, line = browser.run(
        "const pre = document.querySelector('#headline .command pre'); const style = getComputedStyle(pre);"
        "return [pre.clientHeight - parseFloat(style.paddingTop), parseFloat(style.lineHeight)]"
    )
    assert seen / line == pytest.approx(round(seen / line), abs=0.06) and seen / line > 5


def test_a_plan_is_shown_as_in_the_terminal(browser: Browser, tmp_path: Path) -> None:
    content = data("plan")
    browser.open(tmp_path, content, width=1440)
    assert f"{content['best'][0]['tokens_per_s_per_gpu']:,.0f}" in browser.texts("#headline .tile b")
    for tick in browser.texts("#plot-front text[text-anchor=end]"):
        assert re.fullmatch(r"\d{1,3}(,\d{3})*", tick)


def test_the_legend_of_a_plan_has_no_part_that_cannot_be_seen(browser: Browser, tmp_path: Path) -> None:
    content = data("plan")
    for layout in content["best"]:
        layout["time_parts_s"] |= {"overhead": layout["step_s"] * 1e-5, "ep": 0.0}
    browser.open(tmp_path, content, width=1440)
    named = browser.texts("#times .legend li")
    assert "compute" in named and not {"host", "EP"} & set(named)
    widest = browser.run(
        "const widths = {}; for (const node of document.querySelectorAll('#plot-times rect.mark'))"
        "widths[node.style.fill] = Math.max(widths[node.style.fill] || 0, node.width.baseVal.value);"
        "return [...document.querySelectorAll('#times .legend i')].map((node) => widths[node.style.background])"
    )
    assert min(widest) >= 1


def test_steps_have_three_digits_and_one_row_is_a_row(browser: Browser, tmp_path: Path) -> None:
    content = data("study")
    content["trials"] = [{**content["trials"][4], "step_s": 3.1249}]
    browser.open(tmp_path, content, width=1440)
    assert "3.12 s" in browser.texts("#headline .tile b") and "3.12 s" in browser.texts("#table-trials td")
    assert browser.text("#trials [role=status]") == "1 row"


def test_a_comparison_warns_of_another_job_and_breaks_no_word(browser: Browser, tmp_path: Path) -> None:
    browser.open(tmp_path, data("compare"), width=1440)
    caution = data("compare")["caution"]
    assert browser.text("#headline .caution") == caution and "evaluator" in caution
    heights = browser.run(
        "const range = document.createRange(); range.selectNodeContents(document.querySelector('#differences td'));"
        "return range.getClientRects().length"
    )
    assert heights == 1
