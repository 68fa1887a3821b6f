"""`zenithtune optimize --preset mimo` on real CPU ranks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

Start = Callable[..., subprocess.CompletedProcess[str]]
# Only one sample of four has images: on paper the best layout takes 0.7 of the time of the best homogeneous one, which
# a busy machine does not hide.
JOB = (
    "--encoder-layers 8 --encoder-hidden 64 --llm-layers 2 --llm-hidden 32 --vocab-size 64 --images 4,0,0,0 "
    "--global-batch-size 8 --train-iters 5 --device-flops 5e7"
)


def test_a_study_ends_with_a_layout_at_least_as_fast_as_the_best_homogeneous_one(start: Start, tmp_path: Path) -> None:
    options = ["--preset", "mimo", "--args", "n_gpus=4,mbs_max=2,top=1", "--no-baseline", "--no-early-stop"]
    command = [sys.executable, "examples/mimo_train.py", *JOB.split()]
    place = ["--output-dir", str(tmp_path), "--study-name", "study"]
    done = start("-m", "zenith_tune.cli.main", "optimize", *options, *place, "--", *command)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
    said = done.stdout
    assert "layouts for 4 ranks planned" in said
    stopped = re.search(r"stopped: tried (\d+) of \d+ planned layouts, (\d+) of them homogeneous", said)
    assert stopped is not None and int(stopped[1]) == 1 + int(stopped[2]) >= 3, said
    trials = json.loads(next(tmp_path.rglob("*.json")).read_text())["trials"]
    assert [trial["outcome"] for trial in trials] == ["ok"] * int(stopped[1])
    ratio = re.search(r"(\d\.\d\d)x as fast as the best homogeneous layout tried, (\S+) ms -> (\S+) ms a step", said)
    assert ratio is not None, said
    assert float(ratio[2]) > float(ratio[3])
    causes = r"where it comes from, by the plan: waiting .* -> .*the encoder's 4 ranks take .* an LLM stage"
    assert re.search(causes, said), said
    best = next(line for line in said.splitlines() if line.strip().startswith("encoder_ranks="))
    assert "encoder_ranks=0 encoder_tp=2 " in best and "--encoder-tp 2" in said
