"""How much is drawn at random: little in `make test`, and twice as much in CI."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.requirements import is_required


def examples(most: int) -> int:
    """Return how many examples Hypothesis draws: a fifth of what a long search would, and two fifths in CI."""
    return max(most * (2 if is_required("all") else 1) // 5, min(most, 20))


def seeds(values: Iterable[int], num_quick: int) -> list[Any]:
    """Return seeds as parameters, of which all but the first few are left to `make test-all`."""
    return [
        value if index < num_quick else pytest.param(value, marks=pytest.mark.slow)
        for index, value in enumerate(values)
    ]
