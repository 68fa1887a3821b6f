"""Writes docs/images/serve.png: `zenithtune serve` in Chromium, while another process tunes the bundled trainer."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from make_screenshots import EXAMPLES, IMAGES, chromium

OPTIMIZE = ("optimize", "--preset", "megatron", "--args", "n_gpus=8,gbs=16", "--study-name", "first")
SLOW = ("--iteration-seconds", "0.1", "--train-iters", "60")
NUM_SHOWN = 14
"""How many trials the page has when it is drawn."""
WIDTH, HEIGHT = 1160, 720


def main() -> None:
    """Tune, serve, wait for enough trials, and draw the page."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(EXAMPLES / "fake_megatron_train.py", folder / "train.py")
        tuner = start(folder, *OPTIMIZE, "--", "python", "train.py", *SLOW)
        server = None
        try:
            while not (folder / "zenithtune-out" / "first" / "trials" / f"{NUM_SHOWN:04d}" / "log.txt").exists():
                time.sleep(0.2)
            server = start(folder, "serve", "first")
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found is not None
            draw(found[0])
        finally:
            for process in (server, tuner):
                if process is not None:
                    process.terminate()
                    process.wait()


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the command line in a folder."""
    command = [sys.executable, "-m", "zenith_tune.cli.main", *arguments]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path}
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True)


def draw(address: str) -> None:
    """Draw the top of the page once it follows."""
    driver = chromium()
    try:
        size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.get(address)
        while "iteration" not in driver.find_element("id", "live-running").text:
            time.sleep(0.2)
        shot = driver.execute_cdp_cmd("Page.captureScreenshot", {})
        (IMAGES / "serve.png").write_bytes(base64.b64decode(shot["data"]))
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
