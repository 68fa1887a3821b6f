"""The line through short steps: what it states of the whole one, how sure it is, and when whole steps count alone."""

from __future__ import annotations

import json
import math
import random
import re
import statistics
from dataclasses import asdict

import pytest

from zenith_tune.evaluators.base import Progress
from zenith_tune.evaluators.short_steps import NUM_FIRST, ShortSteps, StepLine
from zenith_tune.hooks.process import PREFIX
from zenith_tune.planner.pipeline_timeline import simulate
from zenith_tune.presets.megatron.evaluator import MegatronEvaluator

WHOLE, STAGES, FIXED_S, EACH_S = 64, 2, 1.5, 0.25
TRUE_S = FIXED_S + (WHOLE + STAGES - 1) * EACH_S
MBS = 2


def run_log(num_steps: int, *, noise: float = 0.0, seed: int = 0, bend: float = 0.0) -> str:
    """Return the log of a run that begins with short steps: pipeline fill, optimizer part, and two slow first steps."""
    short, rng = ShortSteps.of(WHOLE, stages=STAGES), random.Random(seed)
    assert short is not None
    event = {"short_steps": {**asdict(short), "batch": WHOLE * MBS}}
    lines = [f"{PREFIX}{json.dumps(event)}"]
    for number in range(1, num_steps + 1):
        count = [*short.numbers, *[WHOLE] * num_steps][number - 1]
        seconds = FIXED_S + (count + STAGES - 1) * EACH_S + bend * (count < WHOLE)
        seconds *= rng.gauss(1, noise) * {1: 3.0, 2: 1.4}.get(number, 1.0)
        tflops = 100 * count / WHOLE * TRUE_S / seconds
        fields = f"throughput per GPU (TFLOP/s/GPU): {tflops:.4f} | global batch size: {count * MBS} | lm loss: 1.0 |"
        lines.append(f" iteration {number}/ 99 | elapsed time per iteration (ms): {seconds * 1000:.2f} | {fields}")
    return "\n".join(lines) + "\n"


def progress(log: str, objective: str = "step_time") -> Progress:
    found = MegatronEvaluator(objective, gbs=WHOLE * MBS, seq=1000).progress(log, {})
    assert found is not None
    return found


def test_the_step_of_the_whole_batch_is_known_before_it_ran() -> None:
    for objective, value in {
        "step_time": TRUE_S,
        "tokens_per_s": WHOLE * MBS * 1000 / TRUE_S,
        "tflops": 100.0,
        "samples_per_s": WHOLE * MBS / TRUE_S,
    }.items():
        found = MegatronEvaluator(objective, gbs=WHOLE * MBS, seq=1000).measure(run_log(7, noise=0.0003), {})
        assert found.value == pytest.approx(value, rel=0.01), objective
        assert found.step_s == pytest.approx(TRUE_S, rel=0.01) and found.extra["global_batch_size"] == WHOLE * MBS
        assert found.error is not None and found.error < 0.01


def test_nothing_is_known_before_three_numbers_ran() -> None:
    evaluator = MegatronEvaluator("step_time")
    assert [evaluator.progress(run_log(num), {}) is not None for num in (3, 4, 5)] == [False, False, True]
    with pytest.raises(ValueError, match="within its first short steps"):
        evaluator.measure(run_log(4), {})


@pytest.mark.parametrize("elapsed", ["0.00", "-5.00", "inf"])
def test_a_time_that_is_none_is_refused_as_it_is_without_short_steps(elapsed: str) -> None:
    lines = run_log(8).splitlines()
    lines[4] = re.sub(r"\(ms\): [0-9.]+", f"(ms): {elapsed}", lines[4])
    with pytest.raises(ValueError, match="above 0, but at iteration 4"):
        MegatronEvaluator("step_time").measure("\n".join(lines) + "\n", {})


def test_the_next_step_costs_what_its_micro_batches_do() -> None:
    short = ShortSteps.of(WHOLE, stages=STAGES)
    assert short is not None
    for num in (5, 7, 8, 9):
        count = [*short.numbers, WHOLE, WHOLE][num]
        assert progress(run_log(num)).next_s == pytest.approx(FIXED_S + (count + STAGES - 1) * EACH_S, rel=1e-3)


def test_steps_and_iterations_are_counted_as_they_ran() -> None:
    found = progress(run_log(9, noise=0.01))
    assert (found.num_iterations, len(found.values)) == (9, 9 - NUM_FIRST)


@pytest.mark.parametrize("noise", [0.0003, 0.003, 0.006])
def test_the_error_is_honest_where_anything_is_stated(noise: float) -> None:
    is_held, errors = [], []
    for seed in range(200):
        found = MegatronEvaluator("step_time").progress(run_log(8, noise=noise, seed=seed), {})
        if found is not None and found.latest is not None:
            is_held.append(abs(found.latest / TRUE_S - 1) <= 1.645 * found.error)
            errors.append(found.error)
    assert statistics.fmean(is_held) >= 0.9 and len(is_held) >= 50
    # The line is extended fourfold: noise grows, and is at least what two steps may agree by chance.
    assert max(noise, 0.001) < statistics.median(errors) <= 6 * max(noise, 0.001)


@pytest.mark.parametrize("noise", [0.03, 0.3])
def test_a_line_through_noise_says_nothing(noise: float) -> None:
    evaluator = MegatronEvaluator("step_time")
    assert evaluator.progress(run_log(8, noise=noise, seed=1), {}) is None
    found = evaluator.progress(run_log(12, noise=noise, seed=1), {})
    assert found is not None and found.latest == pytest.approx(TRUE_S, rel=2 * noise)


def test_whole_steps_sharpen_the_line() -> None:
    errors = [progress(run_log(num, noise=0.004, seed=1)).error for num in (8, 10, 20)]
    assert errors[0] > errors[1] > errors[2]


def test_whole_steps_count_alone_where_the_line_does_not_hold() -> None:
    log = run_log(14, noise=0.001, bend=2.0)
    found = progress(log)
    assert found.latest == pytest.approx(TRUE_S, rel=0.005) and found.error < 0.005
    assert len(found.values) == 5 and progress(run_log(8, bend=2.0)).latest != pytest.approx(TRUE_S, rel=0.05)


def test_a_run_without_the_hook_is_read_as_it_is() -> None:
    _, _, rest = run_log(8).partition("\n")  # as with a batch that ramps up
    assert MegatronEvaluator("step_time").measure(rest, {}).value < TRUE_S / 3


@pytest.mark.parametrize(
    ("whole", "stages", "group", "numbers"),
    [
        (8, 1, 0, (2, 2, 4, 2, 3, 4, 2, 3)),
        (128, 2, 0, (2, 2, 16, 2, 9, 16, 2, 9)),
        (64, 8, 0, (16, 16, 32, 16, 24, 32, 16, 24)),
        (96, 4, 8, (16, 16, 32, 16, 24, 32, 16, 24)),
        (32, 4, 4, (8, 8, 16, 8, 12, 16, 8, 12)),
        (7, 1, 0, None),
        (63, 8, 0, None),
        (62, 4, 4, None),
    ],
)
def test_numbers_keep_the_pipeline_full(whole: int, stages: int, group: int, numbers: tuple[int, ...] | None) -> None:
    found = ShortSteps.of(whole, stages=stages, group=group)
    assert (found and found.numbers) == numbers


@pytest.mark.parametrize("whole", range(8, 300))
def test_short_steps_are_three_numbers_below_the_whole_one(whole: int) -> None:
    for stages, group in [(1, 0), (2, 0), (2, 2), (2, 8), (4, 4), (16, 0)]:
        found = ShortSteps.of(whole, stages=stages, group=group)
        if found is not None:
            assert len({*found.numbers}) == 3 and max(found.numbers) < whole and min(found.numbers) >= max(stages, 2)
            assert all(number % (group or 1) == 0 for number in found.numbers)


def pipeline(rng: random.Random, stages: int) -> tuple[list[float], list[float]]:
    """Return the times of the passes of stages that have about as many layers, an embedding, and a loss."""
    layers = [rng.choice((2.0, 4.0, 8.0))] * stages
    layers = [each + rng.choice((0, 0, 1)) * rng.random() for each in layers]
    layers[0] += rng.choice((0.0, 0.3))
    again, loss = rng.choice((2.0, 3.0)), rng.choice((0.2, 1.0, 3.0))  # a recomputed layer takes 3; a loss 2
    forward, backward = layers[:], [again * each for each in layers]
    forward[-1], backward[-1] = forward[-1] + loss, backward[-1] + 2 * loss
    return forward, backward


@pytest.mark.parametrize(("stages", "chunks"), [(2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (4, 3)])
def test_the_line_of_a_pipeline_is_off_by_what_is_said(stages: int, chunks: int) -> None:
    rng, off, said = random.Random(1), [], 0.0
    for whole in [8 * stages, 16 * stages] * 15:
        forward, backward = pipeline(rng, stages)
        short = ShortSteps.of(whole, stages=stages, group=stages if chunks > 1 else 0)
        assert short is not None
        seconds = {
            count: max(bar.end_s for bar in simulate(forward, backward, chunks=chunks, micro_batches=count))
            for count in (*short.numbers, whole)
        }
        line = StepLine.through([(count / whole, seconds[count]) for count in short.numbers])
        assert line is not None
        off.append(line.at(1) / seconds[whole] - 1)
        said = short.error
    assert math.sqrt(statistics.fmean(each**2 for each in off)) <= max(1.3 * said, 1e-9)


def test_a_line_needs_a_positive_step_and_three_shares() -> None:
    assert StepLine.through([(0.1, 1.0), (0.1, 1.0), (0.2, 2.0)]) is None
    assert StepLine.through([(0.1, 3.0), (0.15, 2.0), (0.2, 1.0)]) is None
    line = StepLine.through([(0.1, 1.1), (0.2, 2.1), (0.3, 3.1), (1.0, 10.1)])
    assert line is not None and math.isclose(line.at(1), 10.1) and math.isclose(line.fixed_s, 0.1)


def test_short_steps_fill_the_pipeline() -> None:
    alone, staged = ShortSteps.of(64), ShortSteps.of(64, stages=4)
    assert alone is not None and alone.numbers == (2, 2, 8, 2, 5, 8, 2, 5)
    assert staged is not None and staged.numbers == (8, 8, 16, 8, 12, 16, 8, 12)


def test_a_line_goes_through_short_steps() -> None:
    line = StepLine.through([(0.25, 3.0), (0.125, 2.0), (0.1875, 2.5), (0.25, 3.0)])
    assert line is not None
    assert line.at(1) == pytest.approx(9.0)
    assert line.error == pytest.approx(0.0055, abs=1e-4)
