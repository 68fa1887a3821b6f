"""The trials that a strategy has started and not yet learned from."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Generic, TypeVar

from zenith_tune.strategies.base import EvalFunction
from zenith_tune.study.parameters import Params, Value
from zenith_tune.study.trial import Trial

T = TypeVar("T")
R = TypeVar("R")


class TrialsUnderWay(Generic[T]):
    """Run trials side by side, each with what the strategy knows it by.

    A strategy looks first, learns what it is told, and only then picks: on a runner with room for one it so knows
    every result before the next pick, and asks the same points each time.
    """

    def __init__(self, eval_fn: EvalFunction) -> None:
        self._eval_fn = eval_fn
        self._running: dict[Future[Trial], T] = {}

    def __len__(self) -> int:
        return len(self._running)

    def look(self) -> tuple[bool, list[tuple[T, Trial]]]:
        """Return whether there is room for another trial, and those that have ended since the last look."""
        has_room = self._eval_fn.has_room()  # before the results, so that none that made the room is missed
        done = [future for future in self._running if future.done()]
        ended = [(self._running.pop(future), future.result()) for future in done]
        return has_room or not self._running, ended

    def start(self, tag: T, params: Mapping[str, Value], why: str = "") -> None:
        """Start a trial; TrialExhausted passes through."""
        self._running[self._eval_fn.submit(params, why)] = tag

    def wait(self) -> None:
        """Block until one of them has ended."""
        wait(self._running, return_when=FIRST_COMPLETED)


def side_by_side(eval_fn: EvalFunction, walks: Iterable[Generator[Params, Trial, R]]) -> list[R]:
    """Go many ways at once: each walk yields points, is sent their trials, and returns what it found.

    Where there is room for one trial only, the walks are gone one after the other. A walk is taken up when there is
    room for it, so that they may be without end.
    """
    under_way: TrialsUnderWay[tuple[int, Generator[Params, Trial, R]]] = TrialsUnderWay(eval_fn)
    found: dict[int, R] = {}
    coming = enumerate(walks)
    ready: list[tuple[int, Generator[Params, Trial, R], Trial | None]] = []
    is_all = False
    while True:
        has_room, ended = under_way.look()
        ready += [(index, walk, trial) for (index, walk), trial in ended]
        if has_room and not ready and not is_all:
            following = next(coming, None)
            is_all = following is None
            ready += [] if following is None else [(*following, None)]
        if has_room and ready:
            index, walk, trial = ready.pop(0)
            try:
                under_way.start((index, walk), next(walk) if trial is None else walk.send(trial))
            except StopIteration as end:
                found[index] = end.value
        elif under_way:
            under_way.wait()
        elif is_all and not ready:
            return [found[index] for index in sorted(found)]


def single(point: Params) -> Generator[Params, Trial, Trial]:
    """Walk to one point, and return its trial."""
    return (yield point)
