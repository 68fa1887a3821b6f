"""How much two runs of one command differed in studies on this machine, kept for the next one."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

from zenith_tune.study.files import learned_folder, write_atomically
from zenith_tune.study.precision import LaunchNoise

MOST_PAIRS = 32
"""The weight of what is kept, in pairs of runs: a machine changes."""


class KeptLaunches:
    """The file of one kind of machine; without a folder nothing is kept."""

    def __init__(self, machine: str) -> None:
        folder = learned_folder()
        self._path: Path | None = None if folder is None else folder / f"launches-{machine}.json"

    def read(self) -> LaunchNoise:
        """Return what earlier studies showed."""
        try:
            found = json.loads(self._path.read_text(encoding="utf-8")) if self._path is not None else {}
            squares, num_pairs = float(found["squares"]), int(found["num_pairs"])
        except (OSError, ValueError, TypeError, LookupError):  # none yet, or another release's
            return LaunchNoise()
        is_sound = math.isfinite(squares) and squares >= 0 and num_pairs > 0
        return LaunchNoise(squares=squares, num_pairs=num_pairs) if is_sound else LaunchNoise()

    def add(self, ratios: list[float]) -> None:
        """Keep the logarithms of the ratios of pairs of runs too."""
        if self._path is None or not ratios:
            return
        known = self.read().seen(ratios)
        share = min(MOST_PAIRS / known.num_pairs, 1.0)
        kept = LaunchNoise(squares=known.squares * share, num_pairs=min(known.num_pairs, MOST_PAIRS))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps(asdict(kept)) + "\n")
        except OSError:  # on a full disk the next study knows less
            return
