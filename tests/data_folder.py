"""Where the tests find measured runs."""

from __future__ import annotations

import os
from pathlib import Path

from tests.requirements import skip


def measured_data() -> Path:
    """Return the folder of measured runs, or skip the calling test where there is none."""
    folder = Path(os.environ.get("ZENITHTUNE_DATA", ""))
    if not os.environ.get("ZENITHTUNE_DATA") or not folder.is_dir():
        skip("data", f"ZENITHTUNE_DATA names no folder of measured runs: {str(folder)!r}")
    return folder
