"""Which evaluator is chosen, and at which objective: `--objective` takes a name or a pattern."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FAKE_TRAINER
from tests.study_tools import PRINT_X, tune
from zenith_tune import PresetTuner, RegexEvaluator
from zenith_tune.errors import StudyError, UsageError
from zenith_tune.evaluators.base import TuningEvaluator, choose_evaluator, is_objective_name
from zenith_tune.presets.megatron.evaluator import MegatronEvaluator

Run = Callable[..., subprocess.CompletedProcess[str]]
TRAIN = (sys.executable, str(FAKE_TRAINER), "--iteration-seconds", "0.001")
MEGATRON = ("optimize", "--preset", "megatron", "--args", "n_gpus=8,gbs=16,seq=4096", "--n-trials", "1")


def own() -> TuningEvaluator:
    return MegatronEvaluator(gbs=16, seq=4096)


def choose(evaluator: str | TuningEvaluator | None = None, objective: str | None = None, **args: Any) -> str:
    chosen = choose_evaluator(evaluator, args, objective, own=own, defaults={"gbs": "16", "seq": "64", "n_gpus": "8"})
    return chosen.describe()


@pytest.mark.parametrize("name", MegatronEvaluator.objectives)
def test_a_known_name_chooses_the_objective_of_the_presets_own_evaluator(name: str) -> None:
    sequence, direction = " and seq 4096" if name == "tokens_per_s" else "", MegatronEvaluator.objectives[name]
    assert choose(objective=name) == f"megatron {name} at gbs 16{sequence}, {direction}"
    assert choose("megatron", name) == f"megatron {name} at gbs 16{sequence.replace('4096', '64')}, {direction}"


def test_without_a_name_an_evaluator_stays_as_it_is() -> None:
    assert choose() == own().describe()
    assert choose(RegexEvaluator("(x)")) == RegexEvaluator("(x)").describe()
    assert choose("regex", pattern="(x)") == RegexEvaluator("(x)").describe()
    with pytest.raises(UsageError, match="--evaluator-args"):
        choose(pattern="(x)")


@pytest.mark.parametrize("evaluator", [None, "megatron", MegatronEvaluator()])
def test_an_unknown_name_is_one_line_with_both_hints(evaluator: str | TuningEvaluator | None) -> None:
    with pytest.raises(UsageError) as caught:
        choose(evaluator, "tokens_per_sec")
    line = str(caught.value)
    assert "'tokens_per_sec'" in line and "'tokens_per_s'?" in line and "\n" not in line
    assert "Known: samples_per_s, step_time, tflops, throughput, tokens_per_s." in line
    assert "'tokens_per_sec: (\\S+)'" in line


def test_an_evaluator_without_objectives_has_no_names(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'step_time'.* Known: none\. .*pattern"):
        tune(tmp_path, PRINT_X, objective="step_time")


@pytest.mark.parametrize("pattern", ["loss: (.*)", "(x)", "no group", "(", "a|b", "", "loss.*", "1st"])
def test_whatever_is_no_plain_word_is_a_pattern(pattern: str) -> None:
    assert not is_objective_name(pattern)


def test_tokens_are_what_a_user_sees(zenithtune: Run) -> None:
    done = zenithtune(*MEGATRON, "-v", "--", *TRAIN)
    assert done.returncode == 0, done.stderr
    assert re.search(r"tokens_per_s .*\bgbs 16 .*\bseq 4096", done.stdout)
    assert "tokens/s" in done.stdout


def test_a_name_on_the_command_line_chooses(zenithtune: Run) -> None:
    done = zenithtune(*MEGATRON, "-v", "--objective", "step_time", "--", *TRAIN)
    assert done.returncode == 0, done.stderr
    assert re.search(r"megatron step_time .*gbs 16, minimize", done.stdout)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--objective", "tokens_per_sec"), "'tokens_per_s'?"),
        (("--objective", "step_time", "--maximize"), "'step_time'"),
        (("--objective", "step_time", "--select", "min"), "'step_time'"),
        (("--objective", "step_time", "--evaluator", "duration"), "unknown objective 'step_time'. Known: none."),
    ],
)
def test_a_mistake_is_one_line(zenithtune: Run, arguments: tuple[str, ...], part: str) -> None:
    done = zenithtune(*MEGATRON, *arguments, "--", *TRAIN)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert part in done.stderr


def test_a_study_is_not_resumed_under_another_objective(tmp_path: Path) -> None:
    def start(objective: str | None, resume: bool = True) -> PresetTuner:
        args = {"n_gpus": 8, "gbs": 16, "seq": 4096}
        place: dict[str, Any] = {"output_dir": tmp_path, "study_name": "s", "resume": resume}
        return PresetTuner(" ".join(TRAIN), "megatron", tune_args=args, objective=objective, **place)

    start("throughput", resume=False).optimize(1)
    with pytest.raises(StudyError, match=r"'megatron throughput .*maximize', .*'megatron tokens_per_s "):
        start(None).optimize(1)
    assert start("throughput").optimize(1)[0] is not None
