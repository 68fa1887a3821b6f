"""The examples of opened, and texts of a shell with control flow in them."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from zenith_tune.errors import CommandError
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.scripts.opened import _keys, opened_script, training_line, with_text_closed


def test_the_value_of_an_option_counts_as_its_options() -> None:
    assert _keys(["python", "train.py", "--lr", "1"]) == ["python", "train.py", "--lr", "--lr="]


BRANCH = 'N=2; SIZES=\'--batch 4\'\nif true; then\n  python train.py $SIZES --n $N "$0" "$1"\nfi'
CASE = 'ADDRESS=${NO_SUCH_NAME:-}\ncase $ADDRESS in x) exit 1 ;; esac\npython train.py --at "$ADDRESS:29500" --batch 4'


def printed(command: str, folder: Path) -> str:
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, cwd=folder).stdout


@pytest.mark.parametrize("command", [f"bash -c {shlex.quote(BRANCH)} me you", CASE])
def test_a_text_with_control_flow_runs_with_another_training_command_and_is_written_back(
    command: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("import sys; print(sys.argv[1:])\n")
    with pytest.raises(CommandError, match="control flow"):
        ParsedCommand.of(command).set({"--batch": "8"})
    opened = opened_script(command)
    changed = ParsedCommand.of(opened).set({"--batch": "8"}).text
    assert "--batch 8" in training_line(changed)
    closed = with_text_closed(changed)
    assert "eval" not in closed and with_text_closed(command) == command
    assert printed(command, tmp_path) == printed(opened, tmp_path) == printed(with_text_closed(opened), tmp_path)
    assert printed(changed, tmp_path) == printed(closed, tmp_path) == printed(command, tmp_path).replace("'4'", "'8'")
