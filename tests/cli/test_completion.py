from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.shell_completion import get_completion_class

from zenith_tune.cli.main import cli

Complete = Callable[..., list[str]]


@pytest.fixture
def complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Complete:
    """What click tells bash, in a folder with two studies: the words before the cursor, then the one that is begun."""
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(("second", "first")):
        record = tmp_path / "zenithtune-out" / name / "record.json"
        record.parent.mkdir(parents=True)
        record.write_text("{}")
        os.utime(record, (1e9 - age, 1e9 - age))

    def answer(*words: str) -> list[str]:
        bash = get_completion_class("bash")
        assert bash is not None
        found = bash(cli, {}, "zenithtune", "_ZENITHTUNE_COMPLETE").get_completions(list(words[:-1]), words[-1])
        return [each.value if each.type == "plain" else f"<{each.type}>" for each in found]

    return answer


@pytest.mark.parametrize("command", [["report"], ["serve"], ["resume"], ["export"], ["doctor"], ["compare", "first"]])
def test_studies_are_completed_with_the_newest_first(complete: Complete, command: list[str]) -> None:
    assert complete(*command, "") == ["second", "first"]
    assert complete(*command, "fi") == ["first"]


@pytest.mark.parametrize("option", ["--compare", "--study-name"])
def test_studies_are_completed_behind_options(complete: Complete, option: str) -> None:
    assert complete("report" if option == "--compare" else "optimize", option, "s") == ["second"]


def test_studies_are_those_of_the_folder_that_was_given(complete: Complete, tmp_path: Path) -> None:
    shutil.move(tmp_path / "zenithtune-out" / "first", tmp_path / "elsewhere" / "first")
    assert complete("report", "--output-dir", str(tmp_path / "elsewhere"), "") == ["first"]


def test_studies_are_those_of_the_database_that_was_given(complete: Complete, tmp_path: Path) -> None:
    import optuna

    optuna.create_study(storage=f"sqlite:///{tmp_path}/some.db", study_name="kept")
    assert complete("report", "--db", f"{tmp_path}/some.db", "") == ["kept"]
    assert complete("report", "--db", f"{tmp_path}/none.db", "") == ["<file>"]


@pytest.mark.parametrize("command", ["optimize", "plan", "guide", "doctor", "probe", "calibrate"])
def test_models_and_clusters_are_completed_by_every_command_that_takes_them(complete: Complete, command: str) -> None:
    assert "llama3-70b" in complete(command, "--model", "llama3-")
    assert {"h100x8", "h100x64"} < set(complete(command, "--cluster", "h100"))
    assert complete(command, "--cluster", "loc") == ["local"]


def test_of_several_clusters_the_last_is_completed(complete: Complete) -> None:
    assert "h100x64,h200x8" in complete("plan", "--compare", "h100x64,h200")


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "--model", "./conf"),
        ("plan", "--cluster", "clusters/mine"),
        ("report", "zenithtune-out/fi"),
        ("optimize", "--", "bash", "tr"),
        ("plan", "--", "bash", "tr"),
    ],
)
def test_where_no_name_fits_the_shell_completes_files(complete: Complete, words: tuple[str, ...]) -> None:
    assert complete(*words) == ["<file>"]


def test_bash_completes_a_study(
    complete: Complete, zenithtune: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    env = {"_ZENITHTUNE_COMPLETE": "bash_complete", "COMP_WORDS": "zenithtune report se", "COMP_CWORD": "2"}
    done = zenithtune(env=env)
    assert (done.stdout, done.stderr) == ("plain,second\n", "")
