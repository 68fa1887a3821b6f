"""Whether a smaller or a larger value is better."""

from __future__ import annotations

from enum import StrEnum


class Direction(StrEnum):
    """Say which of two values is better."""

    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"

    def better(self, value: float, than: float) -> bool:
        """Tell whether `value` is strictly better than `than`.

        >>> Direction.MAXIMIZE.better(2.0, than=1.0)
        True
        """
        return value < than if self is Direction.MINIMIZE else value > than

    def gain(self, value: float, over: float) -> float:
        """Return how much faster `value` is than `over`, as a fraction: 0.25 is 25% faster.

        >>> Direction.MINIMIZE.gain(0.8, over=1.0)
        0.25
        """
        return over / value - 1 if self is Direction.MINIMIZE else value / over - 1
