"""The README's and the documentation's examples, run as written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def run(arguments: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    return subprocess.run(arguments, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("examples", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def test_the_readmes_first_study_works_as_written(folder: Path) -> None:
    commands = [block for block in blocks("README.md", "sh") if block.startswith("zenithtune optimize")]
    assert len(commands) == 1
    done = run(["bash", "-c", commands[0]], folder)
    assert done.returncode == 0, done.stderr
    assert "gain: +43.3% over your command (221.1 TFLOP/s/GPU)" in done.stdout, "the README shows another result"


def test_the_readmes_plan_works_as_written(folder: Path) -> None:
    (command,) = [block for block in blocks("README.md", "sh") if block.startswith("zenithtune plan")]
    done = run(["bash", "-c", command], folder)
    assert done.returncode == 0, done.stderr
    assert "layouts considered" in done.stdout and "tok/s/GPU" in done.stdout


def test_the_planners_python_works_as_written(folder: Path) -> None:
    (code,) = blocks("docs/planner.md", "python")
    done = run([sys.executable, "-c", code], folder)
    assert done.returncode == 0, done.stderr


def test_the_calibrations_of_the_documentation_work_as_written(folder: Path) -> None:
    (rows,) = blocks("docs/calibration.md", "csv")
    (folder / "runs.csv").write_text(rows)
    for commands in blocks("docs/calibration.md", "sh"):
        done = run(["bash", "-ec", commands], folder)
        assert done.returncode == 0, done.stderr
        assert "tok/s/GPU" in done.stdout and "use it: zenithtune plan" in done.stdout


def test_the_readmes_placeholder_works_as_typed(folder: Path) -> None:
    assert "`TP={tp} bash train.sh`" in (ROOT / "README.md").read_text()
    (folder / "train.sh").write_text(
        'exec python examples/fake_megatron_train.py --iteration-seconds 0.001 --tensor-model-parallel-size $TP "$@"\n'
    )
    line = "zenithtune optimize --preset megatron --args n_gpus=8,gbs=16 --n-trials 3 -- TP={tp} bash train.sh"
    done = run(["bash", "-c", line], folder)
    assert done.returncode == 0, done.stdout
    assert "TP=4 bash train.sh --pipeline-model-parallel-size 1" in done.stdout


def test_the_readmes_python_works_as_written(folder: Path) -> None:
    (code,) = blocks("README.md", "python")
    done = run([sys.executable, "-c", code], folder)
    assert done.returncode == 0, done.stderr


def test_the_readme_names_make_targets_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", "\n".join(blocks("README.md", "sh")), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_documented_preset_passes_its_contract(folder: Path) -> None:
    preset, contract = blocks("docs/plugs.md", "python")
    (folder / "test_mine.py").write_text(preset + contract)
    done = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"], folder)
    assert done.returncode == 0, done.stdout


NAMES = "study outcomes planner calibration plugs probe deepspeed presets guided checkpoints mimo doctor accelerate"
PAGES = ("README.md", *(f"docs/{name}.md" for name in NAMES.split()))


@pytest.mark.parametrize("page", PAGES)
def test_every_link_between_pages_leads_somewhere(page: str) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", (ROOT / page).read_text()):
        assert (ROOT / page).parent.joinpath(target).exists(), target
