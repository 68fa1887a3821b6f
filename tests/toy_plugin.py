"""Installs the toy preset, and a broken one, as entry points of a package on PYTHONPATH."""

from __future__ import annotations

import os
from pathlib import Path

from tests.conftest import ROOT

PATIENCE = "TOY_PATIENCE_S"
"""The variable that says how many seconds a fault of the system is waited for, where that is to be short."""


def install(folder: Path) -> dict[str, str]:
    """Write the package's metadata and return the environment in which it is installed."""
    info = folder / "toy_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[zenith_tune.presets]\ntoy = toy_plugin:Toy\nbroken = toy_plugin_broken:Broken\n"
    )
    (folder / "toy_plugin_broken.py").write_text("import a_module_that_nobody_has\n")
    (folder / "toy_plugin.py").write_text(
        "import os\n"
        "from tests.toy_preset import ToyPreset\n"
        "from zenith_tune.study import faults\n"
        f"faults.DEFAULT_PATIENCE_S = float(os.environ.get('{PATIENCE}', faults.DEFAULT_PATIENCE_S))\n"
        "class Toy(ToyPreset):\n"
        "    def __init__(self, *, n: int = 3) -> None:\n"
        "        super().__init__(range(1, n + 1))\n"
    )
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])}
