"""Which trials of a study have been counted in what is kept on the machine, so that resuming it counts none twice."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from zenith_tune.study.files import write_atomically

FILE_NAME = "taught.json"


class Taught:
    """Hold the numbers of trials that have taught; without a folder there are none."""

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / FILE_NAME if folder is not None else None
        self.numbers: set[int] = set(self._read())

    def add(self, numbers: Iterable[int]) -> None:
        """Take in trials that have just been counted."""
        self.numbers |= set(numbers)
        if self._path is not None and self._path.parent.is_dir():
            try:
                write_atomically(self._path, json.dumps(sorted(self.numbers)) + "\n")
            except OSError:  # a disk that is full: they may count twice, which does little harm
                return

    def _read(self) -> list[int]:
        try:
            found = json.loads(self._path.read_text(encoding="utf-8")) if self._path is not None else []
        except (OSError, ValueError):
            return []
        return [number for number in found if isinstance(number, int)] if isinstance(found, list) else []
