"""How much two runs of one command differed in studies on this machine, kept for the next one."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from zenith_tune.study.files import learned_folder, write_atomically
from zenith_tune.study.precision import LaunchNoise

KEPT_PAIRS = 32
"""The weight of what is kept, in pairs of runs: a machine changes."""


class KeptLaunches:
    """The file of one kind of machine; without a folder nothing is kept."""

    def __init__(self, machine: str) -> None:
        folder = learned_folder()
        self._path: Path | None = None if folder is None else folder / f"launches-{machine}.json"

    def read(self) -> LaunchNoise:
        """Return what earlier studies showed."""
        try:
            return LaunchNoise.stored(
                json.loads(self._path.read_text(encoding="utf-8")) if self._path is not None else {}
            )
        except (OSError, RecursionError, ValueError):  # none yet, or not ours
            return LaunchNoise()

    def add(self, ratios: list[float]) -> None:
        """Keep the logarithms of the ratios of pairs of runs too."""
        if self._path is None or not ratios:
            return
        known = self.read().seen(ratios)
        share = min(KEPT_PAIRS / known.num_pairs, 1.0)
        kept = LaunchNoise(squares=known.squares * share, num_pairs=min(known.num_pairs, KEPT_PAIRS))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps(asdict(kept)) + "\n")
        except OSError:  # on a full disk the next study knows less
            return
