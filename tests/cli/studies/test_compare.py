"""The command `zenithtune compare`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_runs import Run, as_json, running
from tests.report.studies import BASELINE, COMMAND, ok, recorded


@pytest.fixture
def compare(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    recorded(tmp_path / "zenithtune-out")
    recorded(
        tmp_path / "zenithtune-out",
        [BASELINE, ok(2, 2, 1, 67_100.0)],
        name="t",
        command=COMMAND + " --option value" * 20,
    )
    return running("compare", capsys)


def test_two_studies_stand_side_by_side(compare: Run) -> None:
    content = as_json(compare("s", "t", "--json"))
    assert content["gain"] == pytest.approx(0.1)
    rows = {row[0]: row[1:] for row in content["summary"]}
    assert rows["best value"] == ["61,000 tokens/s", "67,100 tokens/s"]
    assert rows["gain over its own command"] == ["+22.0%", "+34.2%"]
    assert rows["spent in trials"] == ["62.0 s", "18.0 s"]
    assert [row[0] for row in content["differences"]] == ["command"]


def test_no_line_is_wider_than_the_terminal_but_for_a_command(compare: Run) -> None:
    done = compare("s", "t")
    assert done.code == 0 and "67,100 tokens/s" in done.out
    assert all(len(line) <= 80 or "torchrun" in line for line in done.out.splitlines())


def test_an_unknown_study_is_one_line(compare: Run) -> None:
    done = compare("s", "nope")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
