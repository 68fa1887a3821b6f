"""How much of the same kind is tried: little in `make test`, twice as much in CI, the rest in `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.requirements import is_required


def examples(most: int) -> int:
    """Return how many examples Hypothesis draws: a fifth of what a long search would, and two fifths in CI."""
    return max(most * (2 if is_required("all") else 1) // 5, min(most, 20))


def few_quick(values: Iterable[Any], num_quick: int) -> list[Any]:
    """Return the parameters of a test, of which all but the first few are left to `make test-all`."""
    rows = (value if isinstance(value, tuple) else (value,) for value in values)
    return [pytest.param(*row, marks=[] if index < num_quick else pytest.mark.slow) for index, row in enumerate(rows)]
