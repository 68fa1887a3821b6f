"""The planner in a real browser, with a server and without: what it shows is what the command line prints."""

from __future__ import annotations

import importlib.util
import json
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.report.browser.browsers import Browser
from tests.serve.served import serving_of
from tests.started_processes import wait_until
from zenith_tune.cli.plan import plan
from zenith_tune.units import format_bytes

pytestmark = pytest.mark.slow
GRID = {
    "model": ("llama3-8b", "llama3-70b"),
    "gpu": ("h100", "b200"),
    "gpus": ("8", "64"),
    "gbs": ("256",),
    "seq": ("8192",),
    "emit": ("megatron",),
}


@cache
def static_page() -> str:
    path = Path(__file__).parents[3] / "docs" / "build_planner.py"
    spec = importlib.util.spec_from_file_location("build_planner", path)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return str(script.build(GRID))


def choose(browser: Browser, name: str, value: str) -> None:
    """Choose or type a value, and wait for the answer."""
    script = """
        const field = document.querySelector(`[data-key=${arguments[0]}]`);
        field.value = arguments[1];
        field.dispatchEvent(new Event(field.tagName === 'SELECT' ? 'change' : 'input', {bubbles: true}));
    """
    browser.run("document.getElementById('planner-state').textContent = 'asked'")
    browser.run(script, name, value)
    settled(browser)


def settled(browser: Browser) -> None:
    """Wait for the answer: the form is drawn again with it."""
    wait_until(lambda: browser.count("#planner-state") == 1 and browser.text("#planner-state") == "")


def printed_plan(browser: Browser, *more: str) -> dict[str, Any]:
    """Run the command that the page shows."""
    program, command, *options = shlex.split(browser.texts("#ask .command pre")[0])
    assert (program, command) == ("zenithtune", "plan")
    done = CliRunner().invoke(plan, [*options, *more, "--json"], standalone_mode=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def shows(browser: Browser, expected: dict[str, Any]) -> None:
    """Check what the page shows against a plan of the command line."""
    best = expected["best"]
    cells = [browser.texts(f"#table-layouts tr.row td:nth-child({column})") for column in (2, 7)]
    assert cells == [[row["name"] for row in best], [format_bytes(row["memory_bytes"]) for row in best]]
    assert browser.text("h1") == best[0]["name"]
    assert browser.texts("#headline .command pre")[0] == expected["emit"]["text"]
    drawn = sum(part > 0 for row in best for part in row["memory_parts_bytes"].values())
    assert browser.count("#plot-memory rect.mark") == drawn
    days = 1e12 / best[0]["tokens_per_s"] / 86400
    shown = float(browser.text("#cost .tile b").removesuffix(" days").replace(",", ""))
    assert shown == pytest.approx(days, rel=5e-3)


def visit(browser: Browser, address: str) -> None:
    browser.resize(1280)
    browser.driver.get(address)
    settled(browser)


def with_server(browser: Browser, use: Callable[[], None]) -> None:
    with serving_of(None, token="a-token-of-this-test") as client:
        visit(browser, f"{client.base}/?token=a-token-of-this-test")
        assert "token" not in browser.driver.current_url
        use()


def test_the_page_of_a_server_shows_what_the_command_line_prints(browser: Browser) -> None:
    def use() -> None:
        shows(browser, printed_plan(browser))
        for name, value in {"model": "qwen3-14b", "gpu": "h200", "gpus": "16", "gbs": "128", "seq": "4096"}.items():
            choose(browser, name, value)
        expected = printed_plan(browser)
        assert (expected["cluster"], expected["global_batch"], expected["seq_len"]) == ("h200x16", 128, 4096)
        shows(browser, expected)
        visit(browser, browser.driver.current_url)  # the link holds it all
        shows(browser, expected)

    with_server(browser, use)


def test_what_cannot_be_planned_is_said_and_the_page_goes_on(browser: Browser) -> None:
    def use() -> None:
        choose(browser, "gpus", "12")
        assert "fill nodes of 8" in browser.text("#ask [role=alert]")
        assert ["400 (Bad Request)" in each for each in browser.complaints()] == [True]
        assert browser.one("#layouts").get_attribute("hidden") is not None
        choose(browser, "gpus", "8")
        assert browser.count("#ask [role=alert]") == 0
        assert "Nothing fits" in browser.text("h1") and browser.count("#cost .tile") == 0
        choose(browser, "model", "llama3-8b")
        shows(browser, printed_plan(browser))

    with_server(browser, use)


def test_whoever_types_keeps_the_field_and_is_asked_for_once(browser: Browser) -> None:
    def use() -> None:
        browser.run("performance.clearResourceTimings()")
        field = browser.one("[data-key=gbs]")
        field.clear()
        field.send_keys("512")
        wait_until(lambda: "batch 512" in browser.text("#headline .eyebrow"))
        assert browser.focused() == "gbs" and browser.run("return document.activeElement.value") == "512"
        asked = browser.run("return performance.getEntriesByType('resource').map((each) => each.name)")
        assert len([each for each in asked if "gbs=512" in each]) == 1
        assert not [each for each in asked if "gbs=5&" in each or "gbs=51&" in each]

    with_server(browser, use)


def test_money_is_of_the_price_that_is_typed(browser: Browser) -> None:
    def use() -> None:
        choose(browser, "tokens", "300B")
        choose(browser, "price", "2.5")
        _, hours, money = browser.texts("#cost .tile b")
        assert float(money.strip("$").replace(",", "")) == pytest.approx(float(hours.replace(",", "")) * 2.5, rel=0.01)
        expected = 300e9 / printed_plan(browser)["best"][0]["tokens_per_s_per_gpu"] / 3600
        assert float(hours.replace(",", "")) == pytest.approx(expected, rel=5e-3)
        choose(browser, "tokens", "all")
        assert "300B or 1T" in browser.text("#cost")

    with_server(browser, use)


def test_the_page_of_the_site_needs_no_server(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "planner.html"
    path.write_text(static_page(), encoding="utf-8")
    visit(browser, path.as_uri())
    shows(browser, printed_plan(browser, "--top", "5"))
    for name, value in {"gpu": "b200", "gpus": "8", "model": "llama3-8b"}.items():
        choose(browser, name, value)
    expected = printed_plan(browser, "--top", "5")
    assert (expected["model"], expected["cluster"]) == ("llama3-8b", "b200x8")
    shows(browser, expected)
    visit(browser, browser.driver.current_url)
    shows(browser, expected)
    asked = browser.run("return performance.getEntriesByType('resource').map((each) => each.name)")
    assert asked == []


@pytest.mark.parametrize("width", [375, 768, 1920])
def test_no_width_needs_scrolling_sideways(browser: Browser, tmp_path: Path, width: int) -> None:
    path = tmp_path / "planner.html"
    path.write_text(static_page(), encoding="utf-8")
    visit(browser, path.as_uri())
    browser.resize(width)
    assert browser.overflow() <= 0
