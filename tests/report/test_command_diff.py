"""What differs between two commands: options with their values, overrides, and files that took one another's place."""

from __future__ import annotations

from pathlib import Path

import pytest

from zenith_tune.report.command_diff import command_diff


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ("bash train.sh", "bash train.sh", []),
        ("bash train.sh --a 1", "bash train.sh --a 1 --mbs 4 --fused", ["+ --mbs 4", "+ --fused"]),
        ("python t.py --tp=4 x", "python t.py --tp=2 x", ["- --tp=4", "+ --tp=2"]),
        ("python t.py --c F.yaml tp=4", "python t.py --c F.yaml tp=2", ["- tp=4", "+ tp=2"]),
        ("A=1 python t.py", "A=2 python t.py > log", ["- A=1", "+ A=2", "+ > log"]),
        ("python t.py", "python t.py >", []),
    ],
)
def test_options_arguments_and_variables_are_lines_of_their_own(before: str, after: str, lines: list[str]) -> None:
    assert command_diff(before, after) == lines


def test_of_files_that_took_one_anothers_place_it_shows_what_differs(tmp_path: Path) -> None:
    own, best = tmp_path / "ds.json", tmp_path / "best.json"
    own.write_text('{"stage": 0,\n "x": 1}\n')
    best.write_text('{"stage": 2,\n "x": 1}\n')
    lines = command_diff(f"deepspeed t.py --deepspeed_config {own}", f"deepspeed t.py --deepspeed_config {best}")
    assert lines[:2] == [f"- --deepspeed_config {own}", f"+ --deepspeed_config {best}"]
    assert lines[-2:] == ['-{"stage": 0,', '+{"stage": 2,']
