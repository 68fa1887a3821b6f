"""examples/mimo_train.py: the same training in every layout, in Megatron's words."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from zenith_tune.evaluators.megatron import MegatronEvaluator

pytestmark = pytest.mark.slow

Start = Callable[..., subprocess.CompletedProcess[str]]
TRAINER = "examples/mimo_train.py"
SMALL = "--encoder-layers 2 --llm-layers 2 --global-batch-size 8 --train-iters 6 --use-distributed-optimizer"


def losses(output: str) -> list[float]:
    return [float(value) for value in re.findall(r"lm loss: (\S+) \|", output)]


def train(start: Start, *options: str) -> str:
    done = start(TRAINER, *SMALL.split(), *" ".join(options).split())
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_layouts_print_the_same_losses_also_from_a_checkpoint_of_another(start: Start, tmp_path: Path) -> None:
    colocated = train(start, "--encoder-dp 2 --llm-tp 2 --llm-offset 0 --micro-batch-size 2 --llm-recompute")
    begun = train(start, f"--llm-pp 2 --train-iters 3 --save {tmp_path}/half")
    ended = train(start, f"--encoder-tp 2 --llm-dp 2 --load {tmp_path}/half")
    assert len(losses(colocated)) == 6 and len(losses(begun)) == len(losses(ended)) == 3
    assert losses(begun) + losses(ended) == pytest.approx(losses(colocated), rel=2e-5)
    assert MegatronEvaluator("step_time").evaluate(colocated, {}) > 0


def test_torchrun_starts_its_ranks_too(start: Start) -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = start(*launcher, TRAINER, "--train-iters", "1")
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(losses(done.stdout)) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--encoder-dp 2 --llm-dp 3", "must divide one another, but got 2 and 3"),
        ("--encoder-dp 2", "1 * 1 = 1 and 2"),
        ("--llm-offset 3", "without gap or overlap"),
        ("--images 1,x", "--images takes counts such as 2,1,3,0, but got '1,x'"),
        ("--device-flops 0", "--device-flops must be a number above 0, but got 0"),
        ("--llm-hidden 30", "hidden size must be a multiple of the heads, but got 30 and 4"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(start: Start, options: str, message: str) -> None:
    done = start(TRAINER, *options.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: ") and message in done.stderr
