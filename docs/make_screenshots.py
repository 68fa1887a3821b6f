"""Writes docs/images from real pages: of a recorded study of Megatron-LM on an H200, of one of the demo that runs
now, and of a plan, as Chromium draws them."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

ROOT = Path(__file__).resolve().parent.parent
IMAGES = Path(__file__).with_name("images")
H200_STUDY = ROOT / "benchmarks" / "results" / "h200-study-dense-2026-11-17.json"
EXAMPLES = ROOT / "examples"
DEMO = ("--cluster", "examples/demo/cluster.toml", "--study-name", "first")
LEARN = ("--strategy", "guided", "--strategy-args", "learn=false")
TRAIN = ("bash", "examples/demo/train.sh")
PLAN = ("--model", "llama3-70b", "--cluster", "h100x64", "--gbs", "512", "--seq", "8192")
ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")


def main() -> None:
    """Make the pages in a folder of their own, and draw them."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(EXAMPLES, folder / "examples")
        zenithtune(folder, "optimize", *DEMO, *LEARN, "--", *TRAIN)
        zenithtune(folder, "report", str(H200_STUDY), "--output", str(folder / "h200.html"))
        zenithtune(folder, "report", "first", "--output", "report.html")
        zenithtune(folder, "plan", *PLAN, "--html", "plan.html")
        driver = chromium()
        try:
            shoot(driver, folder / "h200.html", IMAGES / "report-h200.png", width=1280, height=1475)
            shoot(driver, folder / "h200.html", IMAGES / "report-h200-top.png", width=1280, height=1010)
            shoot(driver, folder / "report.html", IMAGES / "report.png", width=1280, height=1370)
            shoot(driver, folder / "report.html", IMAGES / "report-dark.png", width=390, height=1180, theme="dark")
            shoot(driver, folder / "plan.html", IMAGES / "plan.png", width=1200, height=1060, at="#layouts")
        finally:
            driver.quit()


def zenithtune(folder: Path, *arguments: str) -> None:
    """Run the command line in a folder."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [sys.executable, "-m", "zenith_tune.cli.main", *arguments]
    subprocess.run(command, cwd=folder, env={**os.environ, "PATH": path}, check=True, stdout=subprocess.DEVNULL)


def chromium() -> webdriver.Chrome:
    """Start Debian's Chromium without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ARGUMENTS:
        options.add_argument(argument)
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


def shoot(
    driver: webdriver.Chrome, page: Path, image: Path, *, width: int, height: int, theme: str = "light", at: str = ""
) -> None:
    """Draw the top of a page, or what begins at an element of it."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", features)
    driver.get(page.as_uri())
    top = driver.execute_script(f"return document.querySelector('{at}').getBoundingClientRect().top - 16") if at else 0
    clip = {"x": 0, "y": top, "width": width, "height": height, "scale": 1}
    if at:
        driver.execute_script("document.getElementById('top').style.position = 'static'")
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
    image.write_bytes(base64.b64decode(shot["data"]))


if __name__ == "__main__":
    main()
