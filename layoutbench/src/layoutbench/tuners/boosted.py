"""A gradient-boosted ranker: fitted to the other landscapes, it tries layouts in the order that it expects."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layoutbench.protocol import Params, Problem
from layoutbench.runner import NotApplicableError, TunerError
from layoutbench.tuners.plain import Listed

try:
    from sklearn.ensemble import HistGradientBoostingRegressor
except ImportError:
    raise TunerError("tuner boosted-ranker needs scikit-learn: pip install 'layoutbench[boosted]'") from None

SIZES = (
    ("model", ("layers", "hidden", "ffn_hidden", "heads", "vocab", "experts")),
    ("job", ("seq_len", "global_batch")),
    ("cluster", ("gpu_memory_gib", "num_gpus", "gpus_per_node")),
)
CRASHED = 3.0
"""The logarithm of how far behind the best a layout counts that crashed: twenty times as slow."""


class BoostedRanker(Listed):
    """Predict how far behind the best of its landscape each layout is, from shapes, sizes and choices."""

    endless = True

    def __init__(self, problem: Problem, seed: int) -> None:
        if not problem.others:
            raise NotApplicableError("there is no other landscape to learn from")
        rows, targets = [], []
        axes = sorted({name for other in problem.others for name in other.axes} | set(problem.axes))
        for other in problem.others:
            best = other.best_s
            for layout in other.layouts:
                rows.append(_features(other, layout.params, axes))
                behind = math.log(layout.step_s / best)
                targets.append(min(behind, CRASHED))
        own = [_features(problem, params, axes) for params in problem.layouts]
        encoded = _encoded(rows + own)
        model = HistGradientBoostingRegressor(
            random_state=seed, max_iter=200, min_samples_leaf=10, early_stopping=False
        )
        model.fit(encoded[: len(rows)], targets)
        order = np.argsort(model.predict(encoded[len(rows) :]), kind="stable")
        super().__init__([problem.layouts[number] for number in order])


def _features(described: Any, params: Params, axes: Sequence[str]) -> list[float | str | None]:
    sections: Mapping[str, Mapping[str, Any]] = {name: getattr(described, name) for name, _ in SIZES}
    sizes = [sections[section].get(name) for section, names in SIZES for name in names]
    split = math.prod(int(params.get(name, 1)) for name in ("tp", "pp", "cp"))
    return [*sizes, int(sections["cluster"]["num_gpus"]) / split, *(params.get(name) for name in axes)]


def _encoded(rows: Sequence[Sequence[float | str | None]]) -> NDArray[np.float64]:
    """Return what varies: numbers as they are, texts by their rank in the alphabet, what is not stated as nan."""
    columns = []
    for column in zip(*rows, strict=True):
        texts = sorted({value for value in column if isinstance(value, str)})
        if len(set(column)) == 1:
            continue
        columns.append(
            [math.nan if v is None else float(texts.index(v)) if isinstance(v, str) else float(v) for v in column]
        )
    return np.array(columns).T
