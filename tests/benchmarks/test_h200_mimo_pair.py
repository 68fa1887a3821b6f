"""The training of a pair on one GPU, on the CPU with tiny shapes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.requirements import need_module
from tests.warm_process import TORCH_ENV, warm_python


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_pair_is_trained_saved_and_resumed_on_the_curve_of_one_process(tmp_path: Path) -> None:
    need_module("engines", "torch")
    need_module("engines", "transformers")
    output = tmp_path / "pair.json"
    script = [
        "h200_mimo_pair.py",
        "--small",
        "--steps",
        "3",
        "--more",
        "1",
        "--seconds",
        "500",
        "--output",
        str(output),
    ]
    done = subprocess.run(
        [warm_python(), *script],
        cwd=ROOT / "benchmarks",
        env={**TORCH_ENV, "PATH": "", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(output.read_text())
    assert "error" not in found
    assert [phase["exit_codes"] for phase in found["phases"].values()] == [[0], [0, 0], [0, 0]]
    apart = found["compared"]["relative_difference"]
    assert (apart["two ranks, gloo"]["steps"], apart["resumed on shared ranks"]["steps"]) == (4, 1)
    assert max(each["worst"] for each in apart.values()) < 1e-2
    assert found["phases"]["one process"]["ranks"][0]["modules"].keys() == found["predicted"]["modules"].keys()
