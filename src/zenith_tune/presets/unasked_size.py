"""A parallel size that a framework takes where a command leaves it out, and that nobody asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class UnaskedSize:
    """Hold such a size, and the line that says what was meant."""

    name: str
    """The size in short, such as "cp"."""
    size: int
    """What the framework takes."""
    meant: int
    """What a command that says nothing of it means."""
    key: str
    """Where it is said."""
    taken_by: str
    """Whose default it is."""

    @property
    def finding(self) -> str:
        """What is wrong, in one line."""
        return f"your file leaves {self.key} out, which {self.taken_by} takes for {self.size}"

    @property
    def cure(self) -> str:
        """The line to write."""
        return f"set {self.key}: {self.meant}"
