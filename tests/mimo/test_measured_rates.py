"""Rates measured from real steps of the example, and the order of layouts that they lead to."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from zenith_tune.mimo.measured_step import MeasuredStep
from zenith_tune.planner.mimo.candidate import MimoCandidate
from zenith_tune.planner.mimo.prediction import predict
from zenith_tune.planner.mimo.rate_fit import MeasuredLayout, fit_rates, with_rates
from zenith_tune.presets.megatron.evaluator import MegatronEvaluator
from zenith_tune.presets.mimo.example import example_options, read_example
from zenith_tune.presets.mimo.job import MimoOverrides
from zenith_tune.shell import ParsedCommand

pytestmark = pytest.mark.slow

Start = Callable[..., subprocess.CompletedProcess[str]]
JOB = "--encoder-layers 2 --llm-layers 2 --images 1 --global-batch-size 8 --train-iters 5"


def layout(tp: int, mbs: int) -> MimoCandidate:
    return MimoCandidate.of(2, encoder=(tp, 1), language=(tp, 1), encoder_ranks=0, micro_batch=mbs)


def train(start: Start, at: MimoCandidate, *options: str) -> str:
    words = [word for name, value in example_options(at).items() for word in (name, str(value))]
    done = start("examples/mimo_train.py", *JOB.split(), *words, *options)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_measured_rates_order_two_layouts_that_did_not_run_for_them(start: Start) -> None:
    job = read_example(ParsedCommand.of(f"python mimo_train.py {JOB}"), MimoOverrides(n_gpus=2)).job
    runs = []
    for at in (layout(1, 2), layout(2, 2)):
        told = MeasuredStep.read(train(start, at))
        assert told is not None
        seen = {(each.key.module, each.key.tp, each.key.is_backward) for each in told.passes}
        assert seen == {(name, at.encoder.tp, back) for name in ("encoder", "llm") for back in (False, True)}
        assert all(each.blocks_s > 0 and each.first_s > 0 and each.last_s > 0 for each in told.passes)
        assert told.end_s > 0 and all(each.seconds > 0 for each in (*told.messages, *told.sums))
        runs.append(MeasuredLayout(at=at, step=told))
    rates = fit_rates(job, runs)
    assert rates is not None
    # One has a single micro-batch without a sum inside; the other eight, with two dozen sums over both ranks in each.
    quick, slow = layout(1, 4), layout(2, 1)
    planned = [predict(with_rates(job, rates), at).step_s for at in (quick, slow)]
    measured = [MegatronEvaluator("step_time").evaluate(train(start, at), {}) for at in (quick, slow)]
    assert planned[0] < planned[1] / 1.5 and measured[0] < measured[1]


def test_paced_ranks_have_nothing_to_measure(start: Start) -> None:
    assert MeasuredStep.read(train(start, layout(1, 4), "--device-flops", "1e9")) is None
