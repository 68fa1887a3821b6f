"""A best trial that repeats the user's own settings, and a gain inside the noise: neither counts as a gain."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.doctor.test_study_diagnosis import COMMAND, POINT
from tests.report.studies import Recorded
from tests.study_tools import tune
from tests.toy_preset import ToyPreset
from zenith_tune.record.reader import StudyReader
from zenith_tune.record.view import StudyHeader
from zenith_tune.report.study_comparison import describe_gain
from zenith_tune.report.study_digest import StudyDigest
from zenith_tune.report.study_markdown import study_markdown
from zenith_tune.report.terminal.verbose import VerboseReporter
from zenith_tune.study.parameters import CategoricalParameter, Direction, Params
from zenith_tune.study.study import EndReason, Study
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.tuning.events import StudyEnd

OWN: Params = {**POINT, "pp": 4}
BASE = Trial(params={}, outcome=Outcome.OK, value=100.0, unit="tokens/s", spread=0.22, is_baseline=True)
AGAIN = Trial(params=OWN, outcome=Outcome.OK, value=129.5, unit="tokens/s", spread=0.18)


class OwnPreset(ToyPreset):
    """Stand for x = 2 where the command says nothing."""

    def apply_parameters(self, command: str, params: Any) -> str:
        return f"{command} {params['x']}"

    def own_point(self, command: str) -> Params:
        return {"x": 2}


def closing_lines(tmp_path: Path, values: dict[str, float]) -> tuple[list[str], dict[str, Any]]:
    """Return what a study of values by x ends with, the user's own command being under ''."""
    (tmp_path / "train.py").write_text(
        f"import sys\nprint('value:', {values!r}[sys.argv[1] if sys.argv[1:] else ''])\n"
    )
    stream = io.StringIO()
    listener = VerboseReporter(Console(file=stream, width=200, highlight=False))
    tune(tmp_path, f"{sys.executable} {tmp_path / 'train.py'}", OwnPreset(), listener=listener).optimize()
    study = json.loads((tmp_path / "out" / "s" / "study.json").read_text())
    return [line for line in stream.getvalue().splitlines() if line.startswith("gain")], study


def test_a_study_does_not_run_the_users_own_settings_again_and_ends_without_a_gain(tmp_path: Path) -> None:
    lines, study = closing_lines(tmp_path, {"": 100.0, "1": 90.0, "2": 129.5, "3": 95.0})
    assert len(lines) == 1 and lines[0].startswith("gain: none")
    assert (study["gain"], study["best_is_own"]) == (pytest.approx(-0.05), False)
    assert [trial["parameters"] for trial in study["trials"]] == [{}, {"x": 1}, {"x": 3}]


def test_a_study_whose_best_has_other_settings_ends_with_its_gain(tmp_path: Path) -> None:
    lines, study = closing_lines(tmp_path, {"": 100.0, "1": 90.0, "2": 110.0, "3": 129.5})
    (line,) = lines
    assert line.startswith("gain: +29.5% ") and "(100)" in line
    assert (study["gain"], study["best_is_own"]) == (pytest.approx(0.295), False)


def digest(tmp_path: Path, *trials: Trial) -> dict[str, Any]:
    about = StudyHeader(preset="megatron-lm", args={"cluster": "h100x8"}, command=COMMAND, evaluator="megatron")
    study = Recorded(tmp_path / "out", "s", about)
    space = {name: CategoricalParameter([value, f"not {value}"]) for name, value in OWN.items()}
    for trial in trials:
        study.finish(study.start(trial, space=dict(space)), trial)
    study.record.close()
    return StudyDigest(StudyReader(study.url, "s")).object()


def test_the_report_of_a_repeat_has_no_gain_either(tmp_path: Path) -> None:
    content = digest(tmp_path, BASE, AGAIN)
    assert (content["gain"], content["best_is_own"], content["is_within_noise"]) == (0.0, True, False)
    assert describe_gain(content).startswith("none; ") and "%" not in describe_gain(content)
    (headline,) = (line for line in study_markdown(content).splitlines() if line.startswith("Best:"))
    assert "no gain" in headline and not re.search(r"[+-]\d", headline)


@pytest.mark.parametrize(("value", "is_noise"), [(110.0, True), (120.0, True), (170.0, False)])
def test_a_gain_inside_the_noise_of_both_runs_is_within_the_noise(tmp_path: Path, value: float, is_noise: bool) -> None:
    other = replace(AGAIN, params={**OWN, "recompute": "not none"}, value=value)
    content = digest(tmp_path, BASE, other)
    assert (content["best_is_own"], content["is_within_noise"]) == (False, is_noise)
    assert content["gain"] == pytest.approx(value / 100 - 1)
    assert ("noise" in study_markdown(content)) is is_noise
    assert ("noise" in describe_gain(content)) is is_noise


def test_a_terminal_says_that_a_gain_is_within_the_noise(tmp_path: Path) -> None:
    stream, study = io.StringIO(), Study(Direction.MAXIMIZE)
    for trial in (BASE, AGAIN):
        study.add(trial)
    none = tmp_path / "none"
    paths: dict[str, Any] = dict.fromkeys(("csv_path", "json_path", "trials_path", "best_command_path"), none)
    end = StudyEnd(
        study=study,
        reason=EndReason.DONE,
        why="",
        best_command="train",
        database_url="",
        study_name="s",
        warnings=[],
        **paths,
    )
    VerboseReporter(Console(file=stream, width=200, highlight=False)).study_ended(end)
    assert re.search(r"^gain: none.*\+29\.5%.* noise .*±46\.8% \(90%\)", stream.getvalue(), re.MULTILINE)
