"""Where the measured runs lie."""

from __future__ import annotations

import os
from pathlib import Path

from tests.requirements import skip

_BESIDE_THE_PROJECT = Path(__file__).resolve().parents[2] / "shared" / "data"


def measured_data() -> Path:
    """Return the folder of measured runs, or skip the calling test where there is none."""
    folder = Path(os.environ.get("ZENITHTUNE_DATA") or _BESIDE_THE_PROJECT)
    if not folder.is_dir():
        skip("data", f"there is no folder of measured runs at {folder}: set ZENITHTUNE_DATA")
    return folder
