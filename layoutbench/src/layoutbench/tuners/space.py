"""What tuners share: layouts as vectors, the layout that a point of their box stands for, and a folder for files."""

from __future__ import annotations

import math
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from layoutbench.protocol import Params, Problem, Result

FLOOR_S = 1e3
"""A layout that crashes before any ran counts as so slow."""


class Box:
    """The layouts of a problem as vectors from 0 to 1: the rank of each choice on its axis."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self.axes = {name: list(axis) for name, axis in problem.axes.items() if len(axis) > 1}
        self._layouts = problem.layouts
        self._rng = np.random.default_rng(seed)
        self._left = set(range(len(problem.layouts)))
        self._vectors = np.array([self.vector(params) for params in problem.layouts])
        self._slowest = 0.0

    def vector(self, params: Params) -> list[float]:
        """Return a layout as a vector."""
        return [axis.index(params[name]) / (len(axis) - 1) for name, axis in self.axes.items()]

    def nearest(self, vector: Sequence[float]) -> Params | None:
        """Return the nearest layout that was not handed out yet, by the most axes and then the distance."""
        if not self._left:
            return None
        left = np.array(sorted(self._left))
        apart = np.abs(self._vectors[left] - np.asarray(vector))
        distance = (apart > 1e-9).sum(axis=1) + apart.mean(axis=1)
        nearest = left[distance <= distance.min() + 1e-9]
        number = int(self._rng.choice(nearest))
        self._left.remove(number)
        return self._layouts[number]

    def value(self, result: Result) -> float:
        """Return what a sampler minimizes: the logarithm of the step; a crash counts as twice the slowest so far."""
        if result.step_s is None:
            return math.log(2 * self._slowest if self._slowest else FLOOR_S)
        self._slowest = max(self._slowest, result.step_s)
        return math.log(result.step_s)


def scratch_folder(owner: object) -> Path:
    """Return a folder that is removed with its owner."""
    folder = tempfile.mkdtemp()
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
