"""Whole studies on the stand-in for Megatron-LM: first the layout, then its levers, and both in the best command."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.standins.test_pretrain_gpt import DENSE, EXPERTS, placed

Tune = Callable[..., subprocess.CompletedProcess[str]]
SPLIT = f"{DENSE} --tensor-model-parallel-size 4 --sequence-parallel".replace("batch-size 64", "batch-size 8")
UNGROUPED = EXPERTS.replace(" --moe-grouped-gemm", "").replace(" --moe-token-dispatcher-type alltoall", "")


def study(
    zenithtune: Tune,
    folder: Path,
    model: str,
    *more: str,
    version: str = "0.20",
    python: Sequence[str] = (sys.executable,),
    **variables: str,
) -> tuple[dict[str, Any], str]:
    """Return what a study ends with, and its best command."""
    script = placed(folder, version)
    done = zenithtune(
        *("optimize", "--preset", "megatron-lm", "--args", "cluster=h100x8,search=mbs", "--no-confirm", "--json"),
        *("--study-name", "levers", "--output-dir", str(folder / "out"), *more, "--"),
        *("env", "WORLD_SIZE=8", *python, str(script), "--standin-version", version, *model.split()),
        timeout=200,
        env=variables,
    )
    assert done.returncode == 0, done.stderr
    end: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return end, (folder / "out" / "levers" / "best_command.sh").read_text()


@pytest.mark.parametrize("version", ["0.20", pytest.param("0.12", marks=pytest.mark.slow)])
def test_a_dense_model_is_trained_with_the_levers_that_prove_faster(
    zenithtune: Tune, tmp_path: Path, version: str
) -> None:
    end, best = study(zenithtune, tmp_path, SPLIT, version=version)
    assert end["verdict"]["lever_speedup"] > 1.05
    for option in ("--overlap-grad-reduce", "--overlap-param-gather", "--tp-comm-overlap"):
        assert option in best
    assert "--cross-entropy-loss-fusion" in best and "--fp8-format" not in best


@pytest.mark.parametrize(
    ("isolated", "present", "status"),
    [
        pytest.param("", False, "not tried", id="missing", marks=pytest.mark.slow),
        pytest.param("", True, "failed", id="present", marks=pytest.mark.slow),
        pytest.param("-I", False, "failed", id="unknown"),
    ],
)
def test_experts_get_theirs_though_a_package_is_missing(
    zenithtune: Tune, tmp_path: Path, isolated: str, present: bool, status: str
) -> None:
    if present:
        (tmp_path / "deep_ep.py").touch()
    model = f"{UNGROUPED} --expert-model-parallel-size 8"
    end, best = study(zenithtune, tmp_path, model, python=[sys.executable, *isolated.split()], PYTHONPATH=str(tmp_path))
    levers = {each["lever"]: each for each in end["verdict"]["levers"]}
    assert levers["dispatcher=deepep"]["status"] == status
    trials = {each["trial"] for each in levers.values() if each["trial"] is not None}
    if status == "failed" and isolated:
        assert levers["dispatcher=deepep"]["trial"] == max(trials), "what nobody knows of is tried last"
    assert end["best"]["parameters"]["dispatcher"] == "alltoall"
    for option in ("--moe-grouped-gemm", "--moe-permute-fusion", "--overlap-moe-expert-parallel-comm"):
        assert option in best


@pytest.mark.slow
def test_numerics_change_where_they_are_allowed(zenithtune: Tune, tmp_path: Path) -> None:
    end, best = study(zenithtune, tmp_path, SPLIT, "--allow", "fp8")
    assert end["best"]["parameters"]["fp8"] == "tensorwise" and "--fp8-recipe tensorwise" in best


def test_a_lever_that_megatron_switches_off_is_not_kept(zenithtune: Tune, tmp_path: Path) -> None:
    model = f"{SPLIT} --standin-switches-off cross_entropy_loss_fusion"
    end, best = study(zenithtune, tmp_path, model)
    assert "loss_fusion" not in end["best"]["parameters"] and "--overlap-grad-reduce" in best
    assert end["verdict"]["lever_speedup"] > 1


def test_an_unknown_name_is_one_line(zenithtune: Tune, tmp_path: Path) -> None:
    done = zenithtune("optimize", "--preset", "megatron-lm", "--allow", "fp9", "--", "python", "pretrain_gpt.py")
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1
