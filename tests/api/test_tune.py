from __future__ import annotations

import inspect
import re
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click
import pytest

from zenith_tune import Outcome, StudyListener, StudyResult, TuneOptions, UsageError, tune
from zenith_tune.cli.optimize import SCREEN, optimize
from zenith_tune.cli.options import options_of
from zenith_tune.record.view import StudyView
from zenith_tune.tuning.options import option

SCRIPT = """
for word in "$@"; do
  case $previous in --x) x=$word;; esac
  previous=$word
done
[ "$x" = 4 ] && exit 3
echo value: $x
"""


def run(folder: Path, **options: Any) -> StudyResult:
    """Tune a script that prints its own option, and fails with 4."""
    (folder / "train.sh").write_text(SCRIPT)
    given = {"space": {"x": [1, 2, 3, 4]}, "objective": r"value: (\S+)", "maximize": True, "study_name": "s"}
    quiet = {"listener": StudyListener(), "output_dir": folder / "out"}
    return tune(f"bash {folder / 'train.sh'} --x 1", **{**given, **quiet, **options})


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    return run(tmp_path_factory.mktemp("study"))


def test_a_study_comes_back_with_its_best_its_baseline_and_its_command(result: StudyResult) -> None:
    assert result.best is not None and (result.best.value, result.best.params) == (3.0, {"x": 3})
    assert result.baseline is not None and result.baseline.value == 1.0
    assert result.command is not None and result.command.endswith("--x 3")
    assert {trial.outcome for trial in result.trials} == {Outcome.OK, Outcome.ERROR}
    assert result.name == "s" and result.stopped and isinstance(result.view, StudyView)


def test_its_gain_has_an_interval(result: StudyResult) -> None:
    gain = result.gain
    assert gain is not None and gain.low is not None and gain.high is not None
    assert gain.low < gain.speedup < gain.high and gain.speedup == pytest.approx(3.0)
    assert gain.is_confirmed and "confirmed" in str(gain) and str(gain) in repr(result)


def test_it_is_loaded_by_its_folder_and_by_its_name(result: StudyResult) -> None:
    assert result.folder is not None
    for again in (
        StudyResult.load(result.folder),
        StudyResult.load("s", output_dir=result.folder.parent),
        StudyResult.load("s", db=result.folder.parent / "studies.db"),
    ):
        assert (again.name, again.gain, again.command) == (result.name, result.gain, result.command)


def test_a_study_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        StudyResult.load("nowhere", output_dir=tmp_path)


def test_its_trials_are_a_table(result: StudyResult) -> None:
    pytest.importorskip("pandas")
    table = result.to_dataframe()
    assert len(table) == len(result.trials)
    best = table[table["value"] == 3.0].iloc[0]
    assert (best["x"], best["state"]) == (3, "ok")
    assert table[table["x"] == 4]["value"].isna().all()


def test_without_pandas_a_usage_error_says_what_to_install(
    result: StudyResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError) as error:
        result.to_dataframe()
    assert "pandas" in error.value.hint


def test_its_plot_has_every_value_and_can_be_saved(result: StudyResult, tmp_path: Path) -> None:
    plot = result.plot()
    values = [trial for trial in result.trials if trial.ok]
    drawn = re.findall(r"<(circle|rect) [^>]*><title>", plot.svg)
    assert len(drawn) == len(values) and plot.save(tmp_path / "s.svg").read_text() == plot._repr_svg_()


def test_a_notebook_shows_the_verdict_the_command_and_the_trials(result: StudyResult) -> None:
    shown = result._repr_html_()
    assert result.command is not None and result.command in shown and result.plot().svg in shown
    assert shown.count("<tr>") == len(result.trials) + 1
    assert len(repr(result)) < 200 and all(len(repr(trial)) < 300 for trial in result.trials)


def test_a_study_in_which_everything_fails_has_no_best_and_no_gain(tmp_path: Path) -> None:
    script = tmp_path / "fails.sh"
    script.write_text("exit 3\n")
    result = tune(
        f"bash {script}", space={"x": [4, 5]}, objective=r"value: (\S+)", baseline=False,
        listener=StudyListener(), output_dir=tmp_path / "out",
    )  # fmt: skip
    assert (result.best, result.gain, result.command) == (None, None, None)
    assert result.verdict and len(repr(result)) < 200 and "<svg" in result._repr_html_()


def test_options_are_written_as_mappings_or_as_text(tmp_path: Path) -> None:
    text = run(tmp_path, space="x=1,2", strategy="random", strategy_args="seed=1", n_trials=1, confirm=False)
    pairs = run(
        tmp_path, space=["x=1,2"], strategy="random", strategy_args={"seed": 1}, n_trials=1, confirm=False,
        study_name="t", headroom="5%", parallel="auto",
    )  # fmt: skip
    assert [trial.params for trial in text.trials] == [trial.params for trial in pairs.trials]
    assert len(text.trials) <= 2


def test_a_study_is_continued(tmp_path: Path) -> None:
    first = run(tmp_path, n_trials=1, confirm=False)
    again = run(tmp_path, resume=True, confirm=False)
    assert len(again.trials) > len(first.trials)


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_trails": 3},
        {"preset": "megatrn"},
        {"space": {"x": []}},
        {"max_memory": "70"},
        {"headroom": "0.05"},
        {"parallel": 0},
        {"timeout_margin": 2.0},
        {"select": "median", "objective": "tokens_per_s", "maximize": None},
    ],
)
def test_a_mistake_is_a_usage_error(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        run(tmp_path, **wrong)
    assert not (tmp_path / "out").exists()


def test_a_command_may_be_given_as_words(tmp_path: Path) -> None:
    script = tmp_path / "my train.sh"
    script.write_text(SCRIPT)
    found = tune(
        ["bash", str(script), "--x", "1"], space={"x": [2]}, objective=r"value: (\S+)", confirm=False,
        listener=StudyListener(), output_dir=tmp_path / "out",
    )  # fmt: skip
    assert found.best is not None and found.best.value == 2.0


def test_every_option_is_stated_once_and_reaches_the_command_line_and_the_function() -> None:
    written = {each.name for each in optimize.params if isinstance(each, click.Option)}
    of_the_terminal, of_programs = {"as_json", "debug", "dry_run", "help_all", *SCREEN}, {"listener"}
    stated = {field.name for field in fields(TuneOptions)}
    assert written - of_the_terminal == stated - of_programs
    assert set(inspect.signature(tune).parameters) - {"command"} == stated


def test_a_field_is_all_that_an_option_takes() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Longer(TuneOptions):
        cooldown: float | None = option("Seconds between two trials.", metavar="S")
        polite: bool = option("Run trials at a lower priority.", True, off="--no-polite")

    @click.command()
    @options_of(Longer)
    def command(**options: Any) -> Longer:
        return Longer(**options)

    made = command.main(["--cooldown", "2", "--no-polite", "--args", "a=1", "--args", "b=2"], standalone_mode=False)
    assert made == Longer(cooldown=2.0, polite=False, args="a=1,b=2", space=(), allow=())


@pytest.mark.parametrize("name", [field.name for field in fields(TuneOptions) if field.name != "listener"])
def test_an_option_has_the_same_default_on_the_command_line_and_in_python(name: str) -> None:
    given = optimize.make_context("optimize", ["--", "true"]).params
    assert given[name] == getattr(TuneOptions(), name) or (name == "space" and not given[name])
