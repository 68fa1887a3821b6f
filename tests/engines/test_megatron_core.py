"""Megatron Core itself, on two CPUs: every layout trains the same model, and the tuner tunes it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engines.conftest import ENGINE_ENV, PRETRAIN_GPT
from tests.warm_process import warm_python
from zenith_tune.hooks.injection import hook_files

pytestmark = pytest.mark.usefixtures("megatron_core")

Tune = Callable[..., subprocess.CompletedProcess[str]]
MODEL = (
    "--transformer-impl local --no-persist-layer-norm --untie-embeddings-and-output-weights --num-layers 4 "
    "--hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 --vocab-size 128 "
    "--tokenizer-type NullTokenizer --mock-data --global-batch-size 4 --log-interval 1"
)
NUM_ITERATIONS = 8
LAYOUTS = (
    "--tensor-model-parallel-size 2",
    "--pipeline-model-parallel-size 2 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
    "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2",
    "--use-distributed-optimizer --micro-batch-size 2",
)


def launch(num_processes: int, *options: str) -> list[str]:
    launcher = [warm_python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_processes)]
    return [*launcher, str(PRETRAIN_GPT), *MODEL.split(), "--train-iters", str(NUM_ITERATIONS), *options]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env={**os.environ, **ENGINE_ENV}, capture_output=True, text=True, timeout=500)


def losses_of(command: list[str]) -> list[float]:
    done = run(command)
    assert done.returncode == 0, done.stderr[-2000:]
    return [float(loss) for loss in re.findall(r"lm loss: (\S+) \|", done.stdout)]


def test_layouts_of_two_processes_train_as_one_process_does() -> None:
    common = f"{MODEL} --train-iters {NUM_ITERATIONS}"
    layouts = [f"1 {common}", *(f"2 {common} {options}" for options in LAYOUTS)]
    done = run([warm_python(), "-m", "tests.engines.megatron_core.layouts_program", *layouts])
    assert done.returncode == 0, done.stderr[-2000:]
    expected, *found = (json.loads(line) for line in done.stdout.splitlines())
    assert len(expected) == NUM_ITERATIONS
    assert expected[-1] < expected[0] - 0.1, "one process learns"
    for options, losses in zip(LAYOUTS, found, strict=True):
        assert losses == pytest.approx(expected, rel=1e-5), options


def written(folder: Path) -> str:
    """Return a folder with a hook that lets the first steps of 16 micro-batches have fewer."""
    for name, text in hook_files({"short_steps": {"numbers": [2, 2, 4], "whole": 16}}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return str(folder / "hook")


@pytest.mark.parametrize("ranks", ["01", "1", "0"])
@pytest.mark.slow
def test_first_steps_have_fewer_micro_batches_where_every_rank_knows(tmp_path: Path, ranks: str) -> None:
    hooked = f'[[ {ranks} == *$LOCAL_RANK* ]] && export PYTHONPATH={written(tmp_path)}:$PYTHONPATH; exec "$@"'
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python", "bash", "-c"]
    options = "--pipeline-model-parallel-size 2 --global-batch-size 16 --train-iters 5"
    program = [warm_python(), str(PRETRAIN_GPT), *f"{MODEL} {options}".split()]
    done = run([warm_python(), *launcher, hooked, "bash", *program])
    assert done.returncode == 0, done.stderr[-2000:]
    batches = [int(size) for size in re.findall(r"global batch size: +(\d+)", done.stdout)]
    assert batches == ([2, 2, 4, 16, 16] if ranks == "01" else [16] * 5)
    assert ("short_steps" in done.stdout) == (ranks == "01")


def study(zenithtune: Tune, command: list[str], *options: str, code: int = 0) -> list[dict[str, Any]]:
    done = zenithtune(
        *("optimize", "--preset", "megatron-lm", "--args", "cluster=h100x2,search=tp+pp+mbs", "--json"),
        *(*options, "--", *command),
        env=ENGINE_ENV,
        timeout=500,
    )
    assert done.returncode == code, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_tuning_finds_a_layout_that_can_be_run_again(zenithtune: Tune) -> None:
    events = study(zenithtune, launch(2, "--micro-batch-size", "1"), "--n-trials", "2", "--no-confirm")
    trials = [event for event in events if event["event"] == "trial_finished"]
    assert [trial["outcome"] for trial in trials] == ["ok"] * 3, trials  # with the user's own command
    searched = {tuple(trial["parameters"][name] for name in ("tp", "pp", "mbs")) for trial in trials[1:]}
    assert len({(tp, pp) for tp, pp, _ in searched}) == 2

    end = events[-1]
    assert end["best"]["value"] == max(trial["value"] for trial in trials[1:])
    assert len(losses_of(shlex.split(end["best_command"]))) == NUM_ITERATIONS


@pytest.mark.slow
def test_what_megatron_refuses_is_an_error_in_its_own_words(zenithtune: Tune) -> None:
    command = launch(2, "--hidden-size", "48", "--num-attention-heads", "3", "--tensor-model-parallel-size", "2")
    events = study(zenithtune, command, "--n-trials", "1", code=1)
    base = next(event for event in events if event["event"] == "trial_finished")
    assert (base["is_baseline"], base["outcome"]) == (True, "error")
    assert "num_attention_heads (3) must be a multiple of tensor_model_parallel_size (2)" in base["cause"]
