"""What the parts refuse, in words that help."""

from __future__ import annotations

import pytest

from tests.mimo.conftest import RunProgram

pytestmark = pytest.mark.slow

WORDS = {
    "lanes": "data-parallel sizes must divide one another, but got 2 and 3",
    "other ranks": "must have the same ones, but got 4 from 0 on and 4 from 4 on",
    "other size": "must have the same ones, but got 4 from 0 on and 8 from 0 on",
    "pipelined": "may have tp and dp only",
    "odd": "data-parallel sizes must divide one another, but got 2 and 3",
    "heads": "the number of heads must be a multiple of tp, but got 4 and tp 3",
    "stages": "pp must not exceed the layers, but got pp 3 and 2 layers",
    "rows": "one token 0 for each row of vision, but got 12 tokens and 3 rows",
    "room": "8 tokens have no room for 2 items of 4 patches",
}


def test_misuse_is_refused_and_recomputation_changes_no_gradient(run_program: RunProgram) -> None:
    found = run_program("parts")
    refusals = found["refusals"]
    assert refusals.keys() == WORDS.keys()
    assert {name: text for name, text in refusals.items() if WORDS[name] not in text} == {}
    assert found["recomputed_error"] == 0.0
