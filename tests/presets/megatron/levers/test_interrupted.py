"""Studies on the stand-in that are killed, interrupted or repeated while their levers are tried."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.presets.megatron.levers.test_study import SPLIT, UNGROUPED, Tune
from tests.standins.test_pretrain_gpt import STANDIN, placed
from tests.started_processes import marked_processes, wait_until
from tests.thoroughness import few_quick
from tests.warm_process import WarmCommand, zenithtune_words
from zenith_tune.study.files import Json

ALLOWED = ("--allow", "fp8+bf16_grads")
WATCHED = """\
import json, os, pathlib, runpy, sys, time
here = pathlib.Path(__file__).parent
with open(here / "runs", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
if sys.argv[1:].count((here / "stop_at").read_text()) and not (here / "go").exists():
    (here / "reached").touch()
    time.sleep(1000)
runpy.run_path({standin!r}, run_name="__main__")
"""


def watched(folder: Path, stop_at: str) -> Path:
    """Return the stand-in as it notes each run, and waits in those that have an option until a file is there."""
    script = placed(folder, "0.20")
    script.write_text(WATCHED.format(standin=str(STANDIN)))
    (folder / "stop_at").write_text(stop_at)
    return script


def arguments(folder: Path, *more: str) -> list[str]:
    return [
        *("optimize", "--preset", "megatron-lm", "--args", "cluster=h100x8,search=mbs,mbs_max=2", "--json"),
        *("--study-name", "levers", "--output-dir", str(folder / "out"), *ALLOWED, *more, "--", "env", "WORLD_SIZE=8"),
        *(sys.executable, str(folder / "pretrain_gpt.py"), *SPLIT.split()),
    ]


def end_of(command: WarmCommand) -> dict[str, Any]:
    out, err = command.communicate(500)
    assert out.strip(), err
    end: dict[str, Any] = json.loads(out.splitlines()[-1])
    return end


def runs(folder: Path) -> Counter[str]:
    """Count the runs by what they had, whatever their folder."""
    return Counter((folder / "runs").read_text().splitlines())


def outcome(end: Json) -> Json:
    """Return what must not depend on kills: values, not the numbers of trials and the time."""
    verdict = end["verdict"]
    return {
        "best": end["best"]["parameters"],
        "value": end["best"]["value"],
        "gains": verdict["lever_gains"],
        "levers": [(each["lever"], each["status"], each["speedup"], each["beside"]) for each in verdict["levers"]],
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Json, Counter[str]]:
    """Return what a study comes to that nothing disturbs, and what it ran."""
    folder = tmp_path_factory.mktemp("undisturbed")
    watched(folder, "nothing")
    end = end_of(WarmCommand(zenithtune_words(arguments(folder)), folder, os.environ))
    assert end["verdict"]["lever_speedup"] > 1
    return outcome(end), runs(folder)


@pytest.mark.parametrize(
    "stop_at",
    [
        "--overlap-grad-reduce",
        *(pytest.param(at, marks=pytest.mark.slow) for at in ("--tp-comm-overlap", "--fp8-format")),
    ],
)
def test_a_study_that_is_killed_among_its_levers_comes_to_the_same_when_resumed(
    tmp_path: Path, undisturbed: tuple[Json, Counter[str]], stop_at: str
) -> None:
    watched(tmp_path, stop_at)
    tuner = WarmCommand(zenithtune_words(arguments(tmp_path)), tmp_path, os.environ)
    wait_until((tmp_path / "reached").exists)
    tuner.kill()
    tuner.wait()
    (cut_off,) = (tmp_path / "runs").read_text().splitlines()[-1:]
    (tmp_path / "go").touch()
    end = end_of(WarmCommand(zenithtune_words(arguments(tmp_path, "--resume")), tmp_path, os.environ))
    assert outcome(end) == undisturbed[0]
    assert runs(tmp_path) - Counter([cut_off]) == undisturbed[1], "only what was cut off runs once more"
    assert marked_processes(tmp_path) == []


@pytest.mark.parametrize(("signum", "code"), few_quick([(signal.SIGINT, 130), (signal.SIGTERM, 143)], 1))
def test_a_signal_among_the_levers_leaves_the_best_so_far(tmp_path: Path, signum: int, code: int) -> None:
    watched(tmp_path, "--fp8-format")
    tuner = WarmCommand(zenithtune_words(arguments(tmp_path)), tmp_path, os.environ)
    wait_until((tmp_path / "reached").exists)
    tuner.send_signal(signum)
    end = end_of(tuner)
    assert tuner.returncode == code and marked_processes(tmp_path) == []
    best = (tmp_path / "out" / "levers" / "best_command.sh").read_text()
    assert "--overlap-grad-reduce" in best and "--fp8-format" not in best
    left = {each["lever"] for each in end["verdict"]["levers"] if each["is_cut_off"]}
    assert "fp8=tensorwise" in left and end["verdict"]["lever_speedup"] > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(SPLIT, id="dense"),
        pytest.param(f"{UNGROUPED} --expert-model-parallel-size 8", id="experts", marks=pytest.mark.slow),
    ],
)
def test_the_best_command_of_a_study_gains_nothing_when_it_is_tuned_again(
    zenithtune: Tune, tmp_path: Path, model: str
) -> None:
    script = placed(tmp_path, "0.20")

    def tuned(name: str, command: list[str]) -> tuple[Json, str]:
        args = ("--args", "cluster=h100x8,search=mbs,mbs_max=4", "--json", *ALLOWED, "--study-name", name)
        done = zenithtune("optimize", "--preset", "megatron-lm", *args, "--output-dir", str(tmp_path), "--", *command)
        assert done.returncode == 0, done.stderr
        best = (tmp_path / name / "best_command.sh").read_text().splitlines()[-1]
        return json.loads(done.stdout.splitlines()[-1])["verdict"], best

    once, best = tuned("once", ["env", "WORLD_SIZE=8", sys.executable, str(script), *model.split()])
    again, second = tuned("again", [best])
    assert once["lever_speedup"] > 1 and again["lever_speedup"] is None and again["speedup"] <= 1.0
    kept = {each["lever"] for each in once["levers"] if each["status"] == "kept"}
    assert kept and not kept & {each["lever"] for each in again["levers"]}, "what is on is no lever any more"
    assert second.split() == best.split()
