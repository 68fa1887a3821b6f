"""The parameters of a search space: a search space is `dict[str, Parameter]`."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

Value = bool | int | float | str
Params = dict[str, Value]


class Parameter(ABC):
    """The values that one name may take."""

    @abstractmethod
    def grid(self, num_points: int) -> list[Value]:
        """Return at most `num_points` values spread over a numeric range, or every choice."""

    @abstractmethod
    def sample(self, rng: random.Random) -> Value:
        """Draw one value."""

    @abstractmethod
    def contains(self, value: object) -> bool:
        """Tell whether `value` is one that this parameter may take."""


@dataclass(frozen=True, slots=True)
class IntParameter(Parameter):
    """Whole numbers from `low` to `high`, both included, every `step`.

    >>> IntParameter(1, 9, step=2).grid(3)
    [1, 5, 9]
    """

    low: int
    high: int
    step: int = 1

    def __post_init__(self) -> None:
        if self.step < 1:
            raise ValueError(f"step must be at least 1, but got {self.step}")
        if self.low > self.high:
            raise ValueError(f"low must not exceed high, but got {self.low} > {self.high}")

    def grid(self, num_points: int) -> list[Value]:
        last = (self.high - self.low) // self.step
        picks = {round(position) for position in _spread(0, last, num_points)}
        return [self.low + pick * self.step for pick in sorted(picks)]

    def sample(self, rng: random.Random) -> int:
        return rng.randrange(self.low, self.high + 1, self.step)

    def contains(self, value: object) -> bool:
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        return self.low <= value <= self.high and (value - self.low) % self.step == 0


@dataclass(frozen=True, slots=True)
class FloatParameter(Parameter):
    """Real numbers from `low` to `high`, spread evenly or by ratio (`log`)."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.high - self.low):
            raise ValueError(f"low, high and high - low must be finite, but got {self.low} and {self.high}")
        if self.low > self.high:
            raise ValueError(f"low must not exceed high, but got {self.low} > {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"low must be above 0 on a log scale, but got {self.low}")

    def grid(self, num_points: int) -> list[Value]:
        if not self.log:
            return list(dict.fromkeys(_spread(self.low, self.high, num_points)))
        values = [self._from_log(x) for x in _spread(math.log(self.low), math.log(self.high), num_points)]
        # exp(log(x)) is not quite x, and the ends of a range are what people look for.
        ends = [self.low, *values[1:-1], self.high] if num_points > 1 else values
        return list(dict.fromkeys(ends))

    def sample(self, rng: random.Random) -> float:
        if not self.log:
            return min(rng.uniform(self.low, self.high), self.high)
        return self._from_log(rng.uniform(math.log(self.low), math.log(self.high)))

    def _from_log(self, logarithm: float) -> float:
        return min(max(math.exp(logarithm), self.low), self.high)

    def contains(self, value: object) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high


@dataclass(frozen=True, slots=True, init=False)
class CategoricalParameter(Parameter):
    """One of a list of choices, in the order given."""

    choices: tuple[Value, ...]

    def __init__(self, choices: Sequence[Value]) -> None:
        if isinstance(choices, str):
            raise ValueError(f"choices must be a list of values, but got the string {choices!r}")
        # 1, 1.0 and True are equal in Python and yet different choices: their types differ.
        if len({(type(choice), choice) for choice in choices}) != len(choices) or not choices:
            raise ValueError(f"choices must be at least one value, none twice, but got {list(choices)!r}")
        object.__setattr__(self, "choices", tuple(choices))

    def grid(self, num_points: int) -> list[Value]:
        return list(self.choices)

    def sample(self, rng: random.Random) -> Value:
        return rng.choice(self.choices)

    def contains(self, value: object) -> bool:
        return any(type(choice) is type(value) and choice == value for choice in self.choices)


class BoolParameter(CategoricalParameter):
    """False or True."""

    def __init__(self) -> None:
        super().__init__([False, True])


def _spread(low: float, high: float, num_points: int) -> list[float]:
    """Return `num_points` evenly spaced numbers from `low` to `high`, or the middle one of a grid of one."""
    if num_points < 1:
        raise ValueError(f"grid_points must be at least 1, but got {num_points}")
    if num_points == 1:
        return [low + (high - low) / 2]
    step = (high - low) / (num_points - 1)
    return [*(low + step * i for i in range(num_points - 1)), high]


class Direction(StrEnum):
    """Which of two values is better."""

    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"

    @property
    def sign(self) -> int:
        """The factor that turns values into numbers of which the smallest is the best."""
        return 1 if self is Direction.MINIMIZE else -1

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
