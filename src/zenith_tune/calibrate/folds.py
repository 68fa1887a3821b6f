"""What is left out together when a fit is judged on runs that it has not seen."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]

MAX_FOLDS = 20


def folds(places: Sequence[Hashable], most: int = MAX_FOLDS) -> list[BoolArray]:
    """Return which runs to leave out, one fold after another: whole places, or single runs where there is one place.

    >>> [fold.tolist() for fold in folds(["a", "a", "b"])]
    [[True, True, False], [False, False, True]]
    >>> [fold.tolist() for fold in folds(["a", "a"])]
    [[True, False], [False, True]]
    """
    units: Sequence[Hashable] = range(len(places)) if is_one_place(places) else places
    kinds = list(dict.fromkeys(units))
    number = {kind: i % most for i, kind in enumerate(kinds)}
    at = np.array([number[unit] for unit in units])
    return [at == fold for fold in range(min(len(kinds), most))]


def is_one_place(places: Sequence[Hashable]) -> bool:
    """Tell whether all runs are of one place, so that only single runs can be left out."""
    return len(set(places)) == 1
