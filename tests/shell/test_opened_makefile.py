"""The training command of a Makefile's recipe is read, and runs changed where make runs it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from zenith_tune.errors import CommandError
from zenith_tune.runners.launch.process_tree import Process
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.scripts import opened
from zenith_tune.shell.scripts.opened import opened_script, training_line

TRAINER = """#!/bin/bash
echo "in $PWD, SIZE=$SIZE, RATE=$RATE: $(printf '[%s]' "$@")"
"""
MAKEFILE = """\
export SIZE = 8
RATE ?= 2
export RATE
NAME := a b
ARGS = --lr 1 \\
  --name '$(NAME)'
data: ; @echo data for $(RATE)
train: data
\t@echo training $@
\t-false
\tcd jobs && ../bin/python train.py $(ARGS) --home "$$HOME" --count $(words $^) \\
\t    --more 'x  y' 2>&1 | tee out.log
\t@cat jobs/out.log
ifeq ($(SIZE),8)
other: SIZE = 4
endif
other: RATE += 1
other: ; ./bin/python train.py --lr 3
"""
SPECIAL = "SHELL := /bin/bash\n.SHELLFLAGS := -eu -o pipefail -c\n.ONESHELL:\n"
NESTED = "\ninner:\n\t$(MAKE) train\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("bin", "jobs"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin" / "python").write_text(TRAINER)
    (tmp_path / "bin" / "python").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(command: str) -> list[str]:
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    return [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith(("make", "cd jobs", "./"))]


@pytest.mark.parametrize("top", ["", SPECIAL.partition(".ONE")[0], SPECIAL])
@pytest.mark.parametrize("command", ["make train", "make other", "RATE=5 make -s train", "make train NAME=c SIZE=3"])
def test_an_opened_makefile_runs_what_it_ran_and_takes_other_options(folder: Path, command: str, top: str) -> None:
    (folder / "Makefile").write_text(top + MAKEFILE.replace("-false", "-false" if not top else "true"))
    opened = opened_script(command)
    before = run(command)
    assert any("[--lr]" in line for line in before) and sorted(run(opened)) == sorted(before)
    assert ParsedCommand.of(opened).get("--lr") in ("1", "3")
    after = run(str(ParsedCommand.of(opened).set({"--lr": 7, "--new": "a b"})))
    changed = [re.sub(r"(\[--lr\])\[.\](.*)", r"\1[7]\2[--new][a b]", line) for line in before]
    assert sorted(after) == sorted(changed)


def test_a_target_that_makes_another_is_opened_too(folder: Path) -> None:
    (folder / "Makefile").write_text(MAKEFILE + NESTED)
    after = run(str(ParsedCommand.of(opened_script("make inner")).set({"--lr": 7})))
    assert any("[--lr][7][--name][a b]" in line for line in after)


@pytest.mark.parametrize("command", ["make data", "make nothing", "make train other", "make train | tee log"])
def test_what_starts_no_single_training_is_not_opened(folder: Path, command: str) -> None:
    (folder / "Makefile").write_text(MAKEFILE)
    with pytest.raises(CommandError):
        opened_script(command)


@pytest.mark.parametrize(
    "recipe",
    [
        "+touch RAN && python train.py --lr 3",
        "@-+touch RAN; python train.py --lr 3",
        "$(MAKE) data && touch RAN && python train.py --lr 3",
        "$(MAKE) -C jobs; touch RAN\n\tpython train.py --lr 3",
    ],
)
def test_a_recipe_that_make_runs_while_it_lists_is_left_alone(folder: Path, recipe: str) -> None:
    (folder / "Makefile").write_text(f"data: ; @true\ntrain:\n\t{recipe}\n")
    with pytest.raises(CommandError, match="of a recipe also where it only lists"):
        opened_script("make train")
    assert not list(folder.rglob("RAN"))


def test_a_recipe_that_changes_with_each_run_fails_instead_of_running_unchanged(folder: Path) -> None:
    (folder / "Makefile").write_text(
        "RUN = run-$(shell date +%N)\ntrain:\n\t./bin/python train.py --lr 3 --out $(RUN)\n"
    )
    done = subprocess.run(["bash", "-c", opened_script("make train")], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "it changes with each run" in done.stderr


def test_a_listing_that_takes_too_long_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened, "MAKE_S", 0.5)
    (folder / "Makefile").write_text("X := $(shell echo $$$$ > pid; sleep 60)\ntrain: ; python train.py --lr 3\n")
    with pytest.raises(CommandError, match=r"does not list its recipe within 0\.5 s"):
        opened_script("make train")
    left = Process.read(int((folder / "pid").read_text()))
    assert left is None or not left.runs


@pytest.mark.slow
def test_a_makefile_target_is_tuned(
    zenithtune: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    for name in ("pretrain_gpt.py", "train.sh"):
        (tmp_path / name).write_text((ROOT / "examples" / "demo" / name).read_text())
    line = training_line(opened_script(f"bash {tmp_path / 'train.sh'}")).replace('"$(dirname "$0")/', '"')
    (tmp_path / "Makefile").write_text(f"export WORLD_SIZE = 8\ntrain:\n\t{line}\n")
    cluster = ("--cluster", str(ROOT / "examples" / "demo" / "cluster.toml"), "--args", "levers=none")
    done = zenithtune(
        "optimize", *cluster, "--output-dir", "out", "--study-name", "s", "--n-trials", "1", "--", "make", "train"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    best = json.loads((tmp_path / "out" / "s" / "study.json").read_text())["best"]
    by_hand = ["bash", str(tmp_path / "out" / "s" / "best_command.sh")]
    ran = subprocess.run(by_hand, cwd=tmp_path, capture_output=True, text=True, check=True)
    changed = [line for line in Path(by_hand[1]).read_text().splitlines() if re.match(r"# [+-] ", line)]
    assert f"# + --micro-batch-size {best['parameters']['mbs']}" in changed and len(changed) <= 5
    assert f"--micro-batch-size {best['parameters']['mbs']}" in best["command"] and "iteration" in ran.stdout
