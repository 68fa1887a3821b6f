"""Ranks paced like devices: the same training, in the time that the plan has for it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest

from zenith_tune.planner.mimo.prediction import MimoPrediction, predict
from zenith_tune.presets.megatron.evaluator import MegatronEvaluator
from zenith_tune.presets.mimo.preset import MimoPreset

pytestmark = pytest.mark.slow

Start = Callable[..., subprocess.CompletedProcess[str]]
SMALL = "--encoder-layers 2 --llm-layers 2 --llm-hidden 32 --global-batch-size 4 --train-iters 4 --images 2,0"
APART = "--llm-pp 1"
SHARED = "--encoder-dp 2 --llm-dp 2 --llm-offset 0 --llm-recompute"
PACE = "--device-flops 6e7"


def train(start: Start, *options: str) -> str:
    done = start("examples/mimo_train.py", *" ".join((SMALL, *options)).split())
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def losses(output: str) -> list[float]:
    return [float(value) for value in re.findall(r"lm loss: (\S+) \|", output)]


def test_paced_runs_train_the_same_in_the_planned_time(start: Start) -> None:
    losses_before = losses(train(start, APART))
    assert len(losses_before) == 4
    for layout in (APART, SHARED):
        paced = train(start, layout, PACE)
        assert losses(paced) == pytest.approx(losses_before, rel=2e-5)
        planned = own_plan(f"python mimo_train.py {SMALL} {layout} {PACE}")
        assert planned.at.language_recompute == (layout == SHARED)
        step_s = MegatronEvaluator("step_time").evaluate(paced, {})
        assert planned.compute_s + planned.idle_s < step_s < 1.5 * planned.step_s


def own_plan(command: str) -> MimoPrediction:
    """Return the prediction of the layout that a command has."""
    preset = MimoPreset()
    preset.bind(command)
    own = preset.own_point(command)
    assert own is not None
    return predict(preset.space.read.job, preset.space.candidate(own))
