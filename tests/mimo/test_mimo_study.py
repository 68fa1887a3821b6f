"""`zenithtune optimize --preset mimo` on real CPU ranks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mentions import mentions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

Start = Callable[..., subprocess.CompletedProcess[str]]
JOB = (
    "--encoder-layers 2 --llm-layers 2 --llm-hidden 32 --vocab-size 64 --images 4,0,0,0 --global-batch-size 8 "
    "--train-iters 5"
)


def test_a_study_tries_planned_layouts_and_compares_the_fastest_with_homogeneous_ones(
    start: Start, tmp_path: Path
) -> None:
    options = ["--preset", "mimo", "--args", "n_gpus=4,mbs_max=2,top=1", "--no-baseline", "--no-early-stop"]
    command = [sys.executable, "examples/mimo_train.py", *JOB.split()]
    place = ["--output-dir", str(tmp_path), "--study-name", "study"]
    done = start("-m", "zenith_tune.cli.main", "optimize", *options, *place, "--", *command)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
    said = done.stdout
    stopped = re.search(r"(\d+) of \d+ planned layouts, (\d+) .*homogeneous", said)
    assert stopped is not None and int(stopped[1]) == 1 + int(stopped[2]) >= 3, said
    result = json.loads(next(tmp_path.rglob("*.json")).read_text())
    assert [trial["outcome"] for trial in result["trials"]] == ["ok"] * int(stopped[1])
    fastest = max(result["trials"], key=lambda trial: trial["value"])
    assert result["best"]["number"] == fastest["number"]
    # Which layout wins on busy cores is chance; that the comparison has the measured steps is not.
    ratio = re.search(r"\dx .* (\S+) ms -> (\S+) ms", said)
    assert mentions(said, "homogeneous", "stays") if ratio is None else float(ratio[1]) > float(ratio[2]), said
