"""What the parts refuse, and that recomputation changes nothing."""

from __future__ import annotations

import pytest

from tests.mimo.conftest import RunProgram

pytestmark = pytest.mark.slow

NAMED = {
    "heads": "4 and tp 3",
    "stages": "pp 3 and 2 layers",
    "rows": "12 tokens and 3 rows",
    "room": "2 items of 4 patches",
}


def test_misuse_is_refused_and_recomputation_changes_no_gradient(run_program: RunProgram) -> None:
    found = run_program("parts")
    refusals = found["refusals"]
    assert refusals.keys() == NAMED.keys()
    assert {name: text for name, text in refusals.items() if NAMED[name] not in text} == {}
    assert found["recomputed_error"] == 0.0
