"""A real browser without a window, and the few things that tests ask of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.requirements import need_module, skip
from zenith_tune.report.html.page import render_page

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver
    from selenium.webdriver.remote.webelement import WebElement

ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
DESKTOP = 1280


def program(*names: str) -> str:
    """Return the path of a program, or skip the test that needs it."""
    found = next((path for name in names if (path := shutil.which(name)) is not None), None)
    if found is None:
        skip("chromium", f"{names[0]} is not installed")
    return found or ""


class Browser:
    """Show pages in Chromium."""

    def __init__(self) -> None:
        need_module("chromium", "selenium")
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = program("chromium", "chromium-browser", "google-chrome")
        for argument in ARGUMENTS:
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver: WebDriver = webdriver.Chrome(options=options, service=Service(program("chromedriver")))
        self.driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})

    def open(self, folder: Path, data: dict[str, Any], *, width: int = DESKTOP, theme: str = "light") -> None:
        """Show the page of `data` from a file, as a user who opens it would see it."""
        path = folder / "page.html"
        path.write_text(render_page(data), encoding="utf-8")
        self.resize(width)
        self.prefer(theme)
        self.driver.get(path.as_uri())

    def resize(self, width: int, height: int = 900) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def prefer(self, theme: str) -> None:
        """Be a user who prefers a theme, and a page that stands still: a scroll is over when it has begun."""
        wishes = {"prefers-color-scheme": theme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wishes.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element("css selector", selector)

    def count(self, selector: str) -> int:
        return int(self.run("return document.querySelectorAll(arguments[0]).length", selector))

    def text(self, selector: str) -> str:
        """Return the text of an element, also of one that is out of sight."""
        return str(self.run("return document.querySelector(arguments[0]).textContent", selector))

    def texts(self, selector: str) -> list[str]:
        found = self.run("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector)
        return [str(text) for text in found]

    def click(self, selector: str) -> None:
        """Click as a script does: where a sticky header lies over it, too."""
        self.run("document.querySelector(arguments[0]).click()", selector)

    def drag(self, selector: str, start: float, end: float) -> None:
        """Drag across an element, from and to so many of its widths from its middle."""
        from selenium.webdriver import ActionChains

        self.run("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", selector)
        element = self.one(selector)
        width = element.rect["width"]
        chain = ActionChains(self.driver).move_to_element_with_offset(element, round(start * width), 0)
        chain.click_and_hold().move_by_offset(round((end - start) * width), 40).release().perform()

    def tab(self, name: str) -> None:
        """Open a tab of the page, as a reader would."""
        self.click(f"#tab-{name}")

    def press(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def focused(self) -> str:
        """Return the key of the element that has the focus."""
        return str(self.run("return document.activeElement.dataset.key || document.activeElement.tagName"))

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        return int(self.run("return document.documentElement.scrollWidth - window.innerWidth"))

    def work_s(self) -> float:
        """Return the seconds that the page has worked since it was opened, whatever else the machine does."""
        metrics = self.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))

    def complaints(self) -> list[str]:
        """Return what the browser wrote to its console since the last time."""
        entries: list[dict[str, Any]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [str(entry["message"]) for entry in entries]

    def close(self) -> None:
        self.driver.quit()
