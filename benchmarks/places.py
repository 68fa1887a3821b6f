"""Where benchmarks find measured runs, and where they leave their results."""

from __future__ import annotations

import os
from pathlib import Path

from zenith_tune.errors import UsageError

RESULTS = Path(__file__).parent / "results"


def measured_data() -> Path:
    """Return the folder of measured runs: CSV tables in `published/` and `h200/`, logs in `logs/`."""
    if not os.environ.get("ZENITHTUNE_DATA"):
        raise UsageError("no measured runs are given", hint="set ZENITHTUNE_DATA to their folder, or give --fit")
    return Path(os.environ["ZENITHTUNE_DATA"])
