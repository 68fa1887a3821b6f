"""Whether the interval that a run ends with holds the truth as often as it says, looking after every iteration."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable
from dataclasses import replace

import pytest

from zenith_tune import Direction, Outcome, Trial
from zenith_tune.evaluators.base import Progress
from zenith_tune.evaluators.early_stop import MIN_SAMPLES, EarlyStop, Stakes
from zenith_tune.evaluators.steady import num_warm_up, summarise
from zenith_tune.study.precision import TO_90
from zenith_tune.study.trial import Prediction

pytestmark = pytest.mark.slow

NUM_TRIALS = 300
NUM_ITERATIONS = 150
LEAST, MOST = 0.82, 0.99
"""Of 300 intervals that hold in 87% of cases, fewer than 82% do so one time in two hundred: a look after each
iteration costs a little of the 90% where noise is large."""
RULE = EarlyStop()
STAKES = {
    "nothing known": Stakes(),
    "no drift": Stakes(drift=0.0),
    "predicted": Stakes(predicted=Prediction(step_s=0.3, error=0.2, by="planner")),
    "clear": Stakes(drift=0.0, best=Trial(params={}, outcome=Outcome.OK, value=4.0, error=0.01)),
    "close": Stakes(drift=0.0, best=Trial(params={}, outcome=Outcome.OK, value=1.01, error=0.005)),
}


def scaled(stakes: Stakes, step_s: float) -> Stakes:
    """Return the stakes of a job whose steps are longer."""
    predicted = stakes.predicted and replace(stakes.predicted, step_s=stakes.predicted.step_s * step_s)
    return replace(stakes, predicted=predicted)


def ended(values: list[float], step_s: float, stakes: Stakes) -> list[float]:
    """Return the steady iterations, of a middle of 1, that a run shows before it ends."""
    for num in range(MIN_SAMPLES, len(values) + 1):
        steady = values[num_warm_up(values[:num]) : num]
        progress = Progress(values=steady, num_iterations=num, step_s=step_s)
        if RULE.judge(progress, Direction.MINIMIZE, stakes).ends:
            return steady
    return values


def coverage(
    draw: Callable[[random.Random], list[float]], truth: float, step_s: float, stakes: Stakes
) -> tuple[float, float]:
    """Return how often the interval holds the truth, and the mean number of steady iterations."""
    rng, num_held, nums = random.Random(1), 0, []
    for _ in range(NUM_TRIALS):
        steady = ended([2.5 * truth, *draw(rng)], step_s, scaled(stakes, step_s))
        found = summarise(steady, Direction.MINIMIZE)
        assert found.error is not None
        num_held += abs(found.value / truth - 1) <= TO_90 * found.error
        nums.append(len(steady))
    return num_held / NUM_TRIALS, statistics.fmean(nums)


def white(noise: float) -> Callable[[random.Random], list[float]]:
    return lambda rng: [math.exp(noise * rng.gauss(0, 1)) for _ in range(NUM_ITERATIONS)]


@pytest.mark.parametrize("name", STAKES)
@pytest.mark.parametrize("step_s", [0.1, 1.0, 16.0, 40.0])
@pytest.mark.parametrize("noise", [0.003, 0.01, 0.03, 0.1])
def test_nine_of_ten_intervals_hold_whatever_noise_length_and_stakes(noise: float, name: str, step_s: float) -> None:
    share, _ = coverage(white(noise), 1.0, step_s, STAKES[name])
    # Where noise is ten times what two layouts differ by, a run is looked at so often that one time in ten is chance.
    assert share >= LEAST - 0.06 * (noise == 0.1 and name == "close")


@pytest.mark.parametrize("step_s", [0.1, 1.0, 16.0])
def test_a_run_quieter_than_a_clock_tells_is_stated_wider_than_it_is(step_s: float) -> None:
    share, num = coverage(white(0.0003), 1.0, step_s, STAKES["nothing known"])
    assert share > MOST and num <= 25


def heavy_tailed(rng: random.Random) -> list[float]:
    """Draw from Student's t of three degrees of freedom."""
    return [1 + 0.015 * rng.gauss(0, 1) / math.sqrt(rng.gammavariate(1.5, 2) / 3) for _ in range(NUM_ITERATIONS)]


def contaminated(rng: random.Random) -> list[float]:
    """Draw as a measured run of Megatron does: one iteration in seven is up to 12% slower."""
    slow = (0.12 * rng.random() if rng.random() < 1 / 7 else 0.0 for _ in range(NUM_ITERATIONS))
    return [1 + 0.015 * rng.gauss(0, 1) + each for each in slow]


def correlated(rng: random.Random) -> list[float]:
    """Draw iterations that take after the one before them, with a correlation of 0.6."""
    level, found = 0.0, []
    for _ in range(NUM_ITERATIONS):
        level = 0.6 * level + 0.8 * rng.gauss(0, 1)
        found.append(1 + 0.01 * level)
    return found


@pytest.mark.parametrize("step_s", [0.1, 1.0, 16.0])
@pytest.mark.parametrize(
    ("draw", "least"),
    [
        pytest.param(heavy_tailed, LEAST, id="heavy tails"),
        pytest.param(contaminated, LEAST, id="as measured"),
        pytest.param(correlated, 0.70, id="correlated"),
    ],
)
def test_other_noise_than_normal_costs_little(
    draw: Callable[[random.Random], list[float]], least: float, step_s: float
) -> None:
    rng = random.Random(2)
    truth = statistics.median(itertools.chain.from_iterable(draw(rng) for _ in range(200)))
    assert coverage(draw, truth, step_s, STAKES["nothing known"])[0] >= least


@pytest.mark.parametrize("step_s", [0.1, 1.0, 16.0])
def test_a_warm_up_of_ten_seconds_is_in_the_interval_of_most_runs(step_s: float) -> None:
    def draw(rng: random.Random) -> list[float]:
        levels = (1 + 0.05 * math.exp(-index * step_s / 10) for index in range(NUM_ITERATIONS))
        return [level * math.exp(0.003 * rng.gauss(0, 1)) for level in levels]

    assert coverage(draw, 1.0, step_s, STAKES["nothing known"])[0] >= LEAST


@pytest.mark.parametrize("noise", [0.003, 0.02, 0.05, 0.1])
@pytest.mark.parametrize("step_s", [0.1, 1.0, 16.0])
def test_hardly_a_trial_as_fast_as_the_best_is_called_behind_however_noisy_it_is(noise: float, step_s: float) -> None:
    rng, num_behind = random.Random(3), 0
    stakes = Stakes(drift=0.0, best=Trial(params={}, outcome=Outcome.OK, value=1.0, error=0.002))
    for _ in range(NUM_TRIALS):
        values = white(noise)(rng)[:60]
        for num in range(MIN_SAMPLES, len(values) + 1):
            progress = Progress(values=values[:num], num_iterations=num, step_s=step_s)
            found = RULE.judge(progress, Direction.MINIMIZE, stakes)
            if found.ends:
                num_behind += found.reason.startswith("behind")
                break
    assert num_behind <= 0.03 * NUM_TRIALS
