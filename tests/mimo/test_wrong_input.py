"""Input that does not fit is refused in one line, on the rank that meets it; the others name the loss of that one."""

from __future__ import annotations

import re

import pytest

from tests.mentions import mentions
from tests.mimo.conftest import RunProgram

pytestmark = pytest.mark.slow

BOTH, VISION, LANGUAGE = (0, 1), (0,), (1,)
EXPECTED = {
    "one sample fewer": (BOTH, ("16", "15")),
    "half a batch more": (BOTH, ("16", "24")),
    "token too large": (LANGUAGE, ("47", "48")),
    "last label too large": (LANGUAGE, ("47", "99")),
    "token below 0": (LANGUAGE, ("47", "-1")),
    "half rows": (VISION, ("vision", "bfloat16", "float16")),
    "single rows": (VISION, ("vision", "bfloat16", "float32")),
    "narrow rows": (VISION, ("vision", "32", "5")),
    "scalar": (VISION, ("vision", "scale")),
}


def test_batches_tokens_rows_and_parameters_that_do_not_fit_are_refused_in_one_line(run_program: RunProgram) -> None:
    found = run_program("input")
    assert found.pop("nothing") == {"own": ["none", "none"], "shared": ["none"]}
    assert found.keys() == EXPECTED.keys()
    for name, (ranks, named) in EXPECTED.items():
        (shared,) = found[name]["shared"]
        assert mentions(shared, *named) and "\n" not in shared, name
        for rank, problem in enumerate(found[name]["own"]):
            assert "\n" not in problem, name
            assert mentions(problem, *named) if rank in ranks else re.search(r"lost (rank \d|another)", problem), name
