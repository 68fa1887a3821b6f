"""Logs of training runs with given step times, and how far they must be read before the trial may end."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence

from zenith_tune.evaluators.base import TuningEvaluator
from zenith_tune.evaluators.early_stop import EarlyStop, Stakes
from zenith_tune.presets.megatron.evaluator import MegatronEvaluator

WARM_UP_S = [2.4, 1.4]


def log_of(step_s: Sequence[float]) -> str:
    """Return a Megatron log with these step times."""
    fields = "| elapsed time per iteration (ms): {:.4f} | global batch size: 8 | lm loss: 1.0E+00 |"
    head = "using world size: 1\n"
    return head + "".join(
        f" iteration {number:8d}/{len(step_s):8d} {fields.format(seconds * 1000)}\n"
        for number, seconds in enumerate(step_s, start=1)
    )


def noisy(level: Callable[[int], float], num: int, noise: float, seed: int = 0) -> list[float]:
    """Return a run's step times: a warm-up, then `level(i)` with relative noise that is never negative."""
    rng = random.Random(seed)
    return WARM_UP_S + [level(index) * math.exp(noise * rng.gauss(0, 1)) for index in range(num)]


def pieces(log: str) -> Iterator[str]:
    """Yield the log as it stood after each of its lines."""
    end = 0
    while (end := log.find("\n", end) + 1) > 0:
        yield log[:end]


def first_reason(
    log: str,
    evaluator: TuningEvaluator | None = None,
    early_stop: EarlyStop | None = None,
    stakes: Stakes | None = None,
) -> tuple[int, str, str] | None:
    """Return after how many iterations a trial with this log is ended, why, and its log then; None: it is not."""
    evaluator = evaluator or MegatronEvaluator("step_time")
    for piece in pieces(log):
        progress = evaluator.progress(piece, {})
        if progress is None:
            continue
        found = (early_stop or EarlyStop()).judge(progress, evaluator.direction, stakes or Stakes(drift=0.0))
        if found.ends:
            return progress.num_iterations, found.reason, piece
    return None
