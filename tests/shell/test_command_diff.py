"""What differs between two commands: options with their values, and overrides."""

from __future__ import annotations

import pytest

from zenith_tune.shell.command_diff import command_diff


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ("bash train.sh", "bash train.sh", []),
        ("bash train.sh --a 1", "bash train.sh --a 1 --mbs 4 --fused", ["+ --mbs 4", "+ --fused"]),
        ("python t.py --tp=4 x", "python t.py --tp=2 x", ["- --tp=4", "+ --tp=2"]),
        ("python t.py --c F.yaml tp=4", "python t.py --c F.yaml tp=2", ["- tp=4", "+ tp=2"]),
        ("A=1 python t.py", "A=2 python t.py > log", ["- A=1", "+ A=2", "+ > log"]),
        (
            "python t.py --betas 0.9 0.95 --lr -1",
            "python t.py --betas 0.9 0.98 --lr -2",
            ["- --betas 0.9 0.95", "+ --betas 0.9 0.98", "- --lr -1", "+ --lr -2"],
        ),
        ("python t.py", "python t.py >", []),
    ],
)
def test_options_arguments_and_variables_are_lines_of_their_own(before: str, after: str, lines: list[str]) -> None:
    assert command_diff(before, after) == lines


def test_commands_differ_in_lines() -> None:
    assert command_diff("python train.py --lr 1 --tp 4", "python train.py --lr 1 --tp 2 --fused") == [
        "- --tp 4",
        "+ --tp 2",
        "+ --fused",
    ]
