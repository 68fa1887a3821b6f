"""How much is drawn at random: a part of it in `make test`, all of it where CI runs everything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.requirements import is_required


def examples(most: int) -> int:
    """Return how many examples Hypothesis draws: all of them in CI, a fifth elsewhere."""
    return most if is_required("all") else max(most // 5, min(most, 20))


def seeds(values: Iterable[int], num_quick: int) -> list[Any]:
    """Return seeds as parameters, of which all but the first few are left to `make test-all`."""
    return [
        value if index < num_quick else pytest.param(value, marks=pytest.mark.slow)
        for index, value in enumerate(values)
    ]
