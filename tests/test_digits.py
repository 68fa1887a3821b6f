"""Digits are those of ASCII: Python reads others as numbers too, which no shell, trainer or scheduler does."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.regex import RegexEvaluator
from zenith_tune.presets.megatron.log import read_steps
from zenith_tune.runners.base import parallel_trials
from zenith_tune.shell import ParsedCommand
from zenith_tune.units import is_digits, whole

FOREIGN = ["\u0663", "\u00b2", "\uff13", "\u09e9"]
"""Three in Arabic, a superscript two, a full-width three, a Bengali three."""


@pytest.mark.parametrize("digit", FOREIGN)
def test_a_foreign_digit_is_no_number(digit: str) -> None:
    assert not is_digits(digit) and whole(digit) is None
    with pytest.raises(UsageError):
        parallel_trials(digit)


@pytest.mark.parametrize("digit", FOREIGN)
def test_a_foreign_digit_before_a_redirection_is_a_word_as_it_is_to_bash(digit: str, tmp_path: Path) -> None:
    text = f"printf '%s,' {digit}>seen --lr 1"
    subprocess.run(["bash", "-c", text], cwd=tmp_path, check=True)
    words = [word.value for word in ParsedCommand.of(text).commands[0].words]
    assert (tmp_path / "seen").read_text() == "".join(f"{word}," for word in words[2:])
    assert digit in words


@pytest.mark.parametrize("digit", FOREIGN)
def test_a_foreign_digit_in_a_log_is_no_value(digit: str) -> None:
    assert RegexEvaluator(r"value: (\S+)").evaluate(f"value: {digit}\nvalue: 7\n", {}) == 7
    line = "iteration {}/ 10 | elapsed time per iteration (ms): 100.0 | "
    assert not read_steps(line.format(digit)).steps


def test_the_source_names_its_digits() -> None:
    loose = re.compile(r"(?<!\\)\\d|\.(?:isdigit|isdecimal|isnumeric)\(")
    found = [
        f"{path.name}: {line.strip()}"
        for path in Path(ROOT, "src").rglob("*.py")
        for line in path.read_text().splitlines()
        if loose.search(line) and "re.ASCII" not in line and path.name != "units.py"
    ]
    assert not found
