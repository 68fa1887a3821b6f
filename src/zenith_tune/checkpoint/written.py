"""What was written: for the line that a person reads and the object that a program reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zenith_tune.units import count, format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Hold what became of a checkpoint."""

    source: str
    target: str
    paths: tuple[Path, ...]
    num_tensors: int
    num_layers: int
    num_bytes: int
    notes: tuple[str, ...]

    def lines(self, place: Path) -> list[str]:
        """Tell a person."""
        size = f"{count(self.num_tensors, 'tensor')}, {count(self.num_layers, 'layer')}, {format_bytes(self.num_bytes)}"
        return [f"{self.source} -> {self.target}: {size}", *self.notes, f"written: {place}"]

    def as_object(self) -> dict[str, Any]:
        """Return what a program reads."""
        return {
            "source": self.source,
            "target": self.target,
            "paths": [str(path) for path in self.paths],
            "num_tensors": self.num_tensors,
            "num_layers": self.num_layers,
            "num_bytes": self.num_bytes,
            "notes": list(self.notes),
        }
