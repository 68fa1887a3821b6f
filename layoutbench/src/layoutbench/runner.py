"""Runs tuners on landscapes, and keeps what each trial cost and how good the best layout so far was."""

from __future__ import annotations

import contextlib
import importlib
import io
import math
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

import numpy as np

from layoutbench.landscape import Landscape, LandscapeError
from layoutbench.protocol import Params, Problem, Result, Tuner
from layoutbench.tuners import BUILT_IN

NEAR = 0.01
"""Within this share of the best a tuner has found it."""
MOST_TRIALS = 100
LEAST_TRIALS = 20
"""A tuner that never stops may be ended after so many trials, once nothing that is scored can change."""
MOST_FREE = 1000
"""Asking so often in a row for what costs nothing ends a run: repeats, and layouts that were never measured."""

Factory = Callable[[Problem, int], Tuner]


class TunerError(Exception):
    """Say in one line why a tuner cannot be run."""


class NotApplicableError(Exception):
    """Raised by a tuner that cannot search a landscape; it is charged with trying every layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The trials of one tuner on one landscape with one seed."""

    tuner: str
    landscape: str
    source: str
    seed: int
    num_layouts: int
    all_gpu_seconds: float
    """What trying every layout costs."""
    regrets: list[float] = field(default_factory=list)
    """After each trial: how far the layout that looked best so far is behind the best; infinite while none ran."""
    gpu_seconds: list[float] = field(default_factory=list)
    crashed: list[bool] = field(default_factory=list)
    stopped: bool = False
    """True where the tuner ended the search itself."""
    num_free: int = 0
    """How often it asked for a layout again, or for one that was never measured."""
    why_not: str = ""
    """Why the tuner cannot search this landscape."""


def load_tuner(name: str) -> Factory:
    """Return a tuner by its built-in name, or by `module:Class` from the current folder or what is installed.

    `name=module:Class` is called by that name in what is written.
    """
    place = BUILT_IN.get(name, name).rpartition("=")[2]
    module_name, colon, attribute = place.partition(":")
    if not colon:
        raise TunerError(f"unknown tuner {name!r}; known: {', '.join(BUILT_IN)}; your own is module:Class")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        factory: Factory = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise TunerError(f"tuner {name!r} cannot be loaded: {error}") from None
    return factory


def label(name: str) -> str:
    """Return what a tuner is called.

    >>> label("mine=my:Tuner"), label("my:Tuner")
    ('mine', 'my:Tuner')
    """
    return name.partition("=")[0]


def run_tuner(
    name: str,
    factory: Factory,
    landscape: Landscape,
    seed: int,
    *,
    others: Sequence[Landscape] = (),
    most_trials: int = MOST_TRIALS,
) -> Record:
    """Let one tuner search one landscape.

    A layout that was tried before is answered as it was then, and one that was never measured with the outcome
    "unrecorded": neither is a trial, nor costs anything.
    """
    index = {_key(layout.params): number for number, layout in enumerate(landscape.layouts)}
    record = _empty(name, landscape, seed)
    try:
        tuner = factory(landscape.problem(others), seed)
    except NotApplicableError as error:
        return Record(**_fields(_empty(name, landscape, seed)) | {"why_not": str(error)})
    endless = bool(getattr(tuner, "endless", False))
    # The noise of a layout depends on the seed alone, so that every tuner meets the same; the best one to be found is
    # the best of those that ran with it.
    drawn = [layout.draw(np.random.default_rng([seed, at])) for at, layout in enumerate(landscape.layouts)]
    ran = [layout.step_s for layout, result in zip(landscape.layouts, drawn, strict=True) if result.step_s is not None]
    best_s = min(ran, default=landscape.best_s)
    answers: dict[int, Result] = {}
    best_seen, regret, free, num_free, stopped = math.inf, math.inf, 0, 0, False
    while len(answers) < min(most_trials, len(landscape.layouts)) and free < MOST_FREE:
        params = tuner.ask()
        if params is None:
            stopped = True
            break
        number = index.get(_key(params))
        if number is None or number in answers:
            free, num_free = free + 1, num_free + 1
            tuner.tell(params, Result(outcome="unrecorded") if number is None else answers[number])
            continue
        free = 0
        answers[number] = result = drawn[number]
        if result.step_s is not None and result.step_s < best_seen:
            best_seen, regret = result.step_s, landscape.layouts[number].step_s / best_s - 1
        record.regrets.append(regret)
        record.gpu_seconds.append(result.cost_s * landscape.num_gpus)
        record.crashed.append(result.step_s is None)
        tuner.tell(params, result)
        if endless and len(answers) >= LEAST_TRIALS and min(record.regrets) <= NEAR:
            break
    if not (stopped or endless or free):  # the budget is spent: would it have gone on?
        stopped = len(answers) == len(landscape.layouts) or tuner.ask() is None
    return Record(**_fields(record) | {"stopped": stopped, "num_free": num_free})


def run_all(
    names: Sequence[str],
    landscapes: Sequence[Landscape],
    *,
    seeds: int,
    most_trials: int = MOST_TRIALS,
    train: Sequence[Landscape] | None = None,
    jobs: int = 1,
    sealed: bool = False,
    said: Callable[[str], None] = lambda line: None,
) -> list[Record]:
    """Run every tuner on every landscape once per seed, less the landscapes that it is declared to be fitted to.

    Tuners may learn from `train`, or from the other landscapes where that is None; of these, those of the same model
    and cluster are always left out.
    """
    tasks = [(name, item) for name in names for item in landscapes if label(name) not in item.used_for_fitting]
    others = landscapes if train is None else train
    one = partial(_run_seeds, others=others, seeds=seeds, most_trials=most_trials, sealed=sealed)
    records: list[Record] = []
    with contextlib.ExitStack() as stack:
        if jobs > 1:
            context = get_context("spawn")  # a fork of a process with threads, as torch starts them, can hang
            pool = stack.enter_context(ProcessPoolExecutor(jobs, mp_context=context, initializer=_end_with_parent))
            results: Iterable[list[Record]] = pool.map(one, tasks)
        else:
            results = map(one, tasks)
        for (name, landscape), found in zip(tasks, results, strict=True):
            records += found
            said(f"{name} on {'a sealed landscape' if sealed else landscape.name}")
    return records


def _end_with_parent() -> None:
    """Let a worker end with the process that started it: one that is killed has no chance to end its workers."""
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _run_seeds(
    task: tuple[str, Landscape], *, others: Sequence[Landscape], seeds: int, most_trials: int, sealed: bool
) -> list[Record]:
    name, landscape = task
    with contextlib.ExitStack() as stack:
        if sealed:  # what a tuner prints could give the landscape away
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        factory = load_tuner(name)
        try:
            return [
                run_tuner(label(name), factory, landscape, seed, others=others, most_trials=most_trials)
                for seed in range(seeds)
            ]
        except (TunerError, LandscapeError):
            raise
        except Exception as error:
            place = "a sealed landscape" if sealed else landscape.name
            what = type(error).__name__ if sealed else f"{type(error).__name__}: {error}"
            raise TunerError(f"tuner {name!r} failed on {place}: {what}") from (None if sealed else error)


def _empty(name: str, landscape: Landscape, seed: int) -> Record:
    return Record(
        tuner=name,
        landscape=landscape.name,
        source=landscape.source["id"],
        seed=seed,
        num_layouts=len(landscape.layouts),
        all_gpu_seconds=math.fsum(layout.cost_s for layout in landscape.layouts) * landscape.num_gpus,
    )


def _fields(record: Record) -> dict[str, Any]:
    return {name: getattr(record, name) for name in Record.__slots__}


def _key(params: Params) -> tuple[tuple[str, int | str], ...]:
    return tuple(sorted(params.items()))
