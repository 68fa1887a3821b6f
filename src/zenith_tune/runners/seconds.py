"""Seconds that the user gives a runner."""

from __future__ import annotations

from zenith_tune.errors import UsageError

MAX_S = 3600.0


def check_seconds(runner: str, name: str, value_s: float, least_s: float = 0.0) -> None:
    """Refuse a time that cannot be kept, and one longer than anybody waits.

    >>> check_seconds("ray", "grace_s", 5.0)
    """
    if not least_s <= value_s <= MAX_S:
        law = f"{runner}: {name} must be from {least_s:g} to {MAX_S:g} seconds"
        raise UsageError(f"{law}, but got {value_s:g}: give e.g. {name}=5, or leave it out")
