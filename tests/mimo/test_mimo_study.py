"""`zenithtune optimize --preset mimo` on real CPU ranks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.mentions import mentions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

Run = Callable[..., subprocess.CompletedProcess[str]]
JOB = (
    "--encoder-layers 2 --llm-layers 2 --llm-hidden 32 --vocab-size 64 --images 4,0,0,0 --global-batch-size 8 "
    "--train-iters 5"
)
WARM = f"""
import os, sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from tests.warm_process import TORCH, WarmProcess
words = [{str(ROOT / "examples" / "mimo_train.py")!r}, *sys.argv[1:]]
sys.exit(WarmProcess(TORCH, words, env=os.environ, folder=Path.cwd(), out=1, err=2).wait())
"""


def test_a_study_tries_planned_layouts_and_compares_the_fastest_with_homogeneous_ones(
    zenithtune: Run, warm_env: dict[str, str], tmp_path: Path
) -> None:
    program = tmp_path / "mimo_train.py"
    program.write_text(WARM)
    options = ["--preset", "mimo", "--args", "n_gpus=4,cores=2,mbs_max=2,top=1", "--no-baseline", "--no-early-stop"]
    command = [sys.executable, str(program), *JOB.split()]
    place = ["--output-dir", str(tmp_path / "out"), "--study-name", "study"]
    done = zenithtune("optimize", "-v", *options, *place, "--", *command, env=warm_env)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
    said = done.stdout
    stopped = re.search(r"(\d+) of \d+ planned layouts, (\d+) .*homogeneous", said)
    assert stopped is not None and int(stopped[1]) >= int(stopped[2]) >= 2, said
    result = json.loads(next((tmp_path / "out").rglob("*.json")).read_text())
    assert [trial["outcome"] for trial in result["trials"]] == ["ok"] * int(stopped[1])
    fastest = max(result["trials"], key=lambda trial: trial["value"])
    assert result["best"]["number"] == fastest["number"]
    # Which layout wins on busy cores is chance; that the comparison has the measured steps is not.
    ratio = re.search(r"\dx .* (\S+) ms -> (\S+) ms", said)
    assert mentions(said, "homogeneous", "stays") if ratio is None else float(ratio[1]) > float(ratio[2]), said
