from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Generator, Mapping
from concurrent.futures import Future
from types import FrameType

import pytest

from zenith_tune.errors import TrialExhausted
from zenith_tune.strategies.base import EvalFunction, TuningStrategy, await_first, side_by_side, single
from zenith_tune.strategies.grid import GridStrategy
from zenith_tune.strategies.megatron_heuristic import FIXED, MegatronHeuristicStrategy
from zenith_tune.strategies.optuna import OptunaStrategy
from zenith_tune.strategies.random import RandomStrategy
from zenith_tune.study.parameters import CategoricalParameter, Direction, Params, Value
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.testing import ScriptedTrials


class Slots(EvalFunction):
    """Trials that end only when all slots are taken or nothing more is asked, like real ones that take their time."""

    def __init__(self, num_slots: int, budget: int = 1000) -> None:
        self.num_slots, self.budget = num_slots, budget
        self.points: list[Params] = []
        self.most = 0
        self._lock = threading.Lock()
        self._running: list[tuple[Future[Trial], Params]] = []

    def __call__(self, params: Mapping[str, Value]) -> float | None:
        return self.run(params).value

    def run(self, params: Mapping[str, Value], why: str = "") -> Trial:
        return self.submit(params, why).result()

    def submit(self, params: Mapping[str, Value], why: str = "") -> Future[Trial]:
        with self._lock:
            if len(self.points) >= self.budget:
                raise TrialExhausted("spent")
            self.points.append(dict(params))
            future: Future[Trial] = Future()
            self._running.append((future, dict(params)))
            self.most = max(self.most, len(self._running))
        # Longer than a sampler takes to think, also on a busy machine, where others are to be started meanwhile.
        threading.Timer(0.01 if self.num_slots == 1 else 0.4, self._end_one).start()
        return future

    def has_room(self) -> bool:
        with self._lock:
            return len(self._running) < self.num_slots

    def _end_one(self) -> None:
        with self._lock:
            # The last one first: results come in any order.
            future, params = self._running.pop()
            value = score(params)
            outcome = Outcome.ERROR if value is None else Outcome.OK
            future.set_result(Trial(params=params, outcome=outcome, value=value))


def score(params: Mapping[str, Value]) -> float | None:
    tp, mbs, ep = (int(params.get(name, 1)) for name in ("tp", "mbs", "ep"))
    if mbs > tp * (2 if params.get("recompute_granularity") == "full" else 1):
        return None
    value: float = 100 * mbs / (mbs + 1) / tp**0.5 + ep
    return value


def space() -> dict[str, CategoricalParameter]:
    sizes = [1, 2, 4, 8]
    return {
        **{name: CategoricalParameter([value]) for name, value in FIXED.items()},
        **{name: CategoricalParameter(sizes) for name in ("tp", "ep", "mbs")},
        "recompute_granularity": CategoricalParameter(["full", "selective"]),
    }


def strategies() -> list[TuningStrategy]:
    return [GridStrategy(), RandomStrategy(), OptunaStrategy(), MegatronHeuristicStrategy(n_gpus=8)]


@pytest.mark.parametrize("strategy", strategies(), ids=lambda strategy: type(strategy).__name__)
def test_a_strategy_fills_the_slots_and_never_more(strategy: TuningStrategy) -> None:
    trials = Slots(num_slots=4, budget=24)
    try:
        strategy.optimize(trials, space(), Direction.MAXIMIZE)
    except TrialExhausted:
        assert len(trials.points) == 24
    assert trials.most == 4


@pytest.mark.parametrize("strategy", strategies(), ids=lambda strategy: type(strategy).__name__)
def test_with_one_slot_the_points_are_those_of_a_sequence(strategy: TuningStrategy) -> None:
    one, sequence = Slots(num_slots=1, budget=24), ScriptedTrials(score, budget=24)
    for trials in (one, sequence):
        with contextlib.suppress(TrialExhausted):
            strategy.optimize(trials, space(), Direction.MAXIMIZE)
    assert one.points == sequence.points


def test_the_heuristic_asks_the_same_points_side_by_side() -> None:
    many, sequence = Slots(num_slots=3), ScriptedTrials(score)
    for trials in (many, sequence):
        MegatronHeuristicStrategy(n_gpus=8).optimize(trials, space(), Direction.MAXIMIZE)
    key = lambda point: sorted((name, str(value)) for name, value in point.items())  # noqa: E731
    assert sorted(many.points, key=key) == sorted(sequence.points, key=key)


def test_walks_return_what_they_found_in_their_order() -> None:
    def walk(tp: int) -> Generator[Params, Trial, list[float | None]]:
        values = []
        for mbs in (1, 2, 4):
            trial = yield {"tp": tp, "mbs": mbs}
            values.append(trial.value)
        return values

    found = side_by_side(Slots(num_slots=2), (walk(tp) for tp in (1, 2, 4)))
    assert found == [[score({"tp": tp, "mbs": mbs}) for mbs in (1, 2, 4)] for tp in (1, 2, 4)]


def test_what_a_trial_raises_comes_out() -> None:
    class Broken(Slots):
        def submit(self, params: Mapping[str, Value], why: str = "") -> Future[Trial]:
            future: Future[Trial] = Future()
            future.set_exception(ValueError("broken"))
            return future

    with pytest.raises(ValueError, match="broken"):
        side_by_side(Broken(num_slots=1), [single({"tp": 1}), single({"tp": 2})])


def test_no_walks_find_nothing() -> None:
    walks: list[Generator[Params, Trial, Trial]] = []
    assert side_by_side(Slots(num_slots=2), walks) == []


def test_a_signal_that_does_not_wake_the_main_thread_is_still_acted_on() -> None:
    class StruckError(Exception):
        pass

    def strike(signum: int, frame: FrameType | None) -> None:
        raise StruckError

    is_blocked = threading.Event()

    def send() -> None:
        is_blocked.wait()
        os.kill(os.getpid(), signal.SIGUSR1)

    previous = signal.signal(signal.SIGUSR1, strike)
    thread = threading.Thread(target=send)
    thread.start()
    # Blocked here, the signal is received by the other thread, and no system call of this one is interrupted.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        with pytest.raises(StruckError):
            is_blocked.set()
            await_first([Future()])
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        signal.signal(signal.SIGUSR1, previous)
        thread.join()
