"""The answers on docs/planner.md are those that are printed."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.conftest import ROOT
from tests.plan_runs import planning

BLOCKS = re.findall(r"```text\n\$ zenithtune plan (.*)\n((?:.*\n)+?)```", (ROOT / "docs" / "planner.md").read_text())


@pytest.mark.parametrize(("command", "answer"), BLOCKS, ids=[command[:60] for command, _ in BLOCKS])
def test_an_answer_on_the_page_is_the_head_of_what_is_printed(
    command: str, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert planning(capsys)(*shlex.split(command)).out.startswith(answer)


def test_every_question_has_its_answer() -> None:
    asked = " ".join(command for command, _ in BLOCKS)
    assert all(option in asked for option in ("--tokens", "--compare", "--qlora", "--reference", "--longest"))
