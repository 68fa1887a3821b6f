"""A rank that dies or stops takes no other with it into a hang."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.mimo.conftest import RunProgram

pytestmark = pytest.mark.slow

LOST_RANK, TIMEOUT_S = 2, 4.0


def test_when_a_rank_is_lost_in_a_step_the_others_say_so_and_end(run_program: RunProgram, tmp_path: Path) -> None:
    found = run_program("lost_rank")
    for world in found["worlds"].values():
        assert world["codes"] == [1, 1, -signal.SIGKILL, 1]
        # One timeout to notice a stopped rank, as long again for the rest; starting up takes some, too.
        assert world["s"] < 2 * TIMEOUT_S + 20
    assert not found["has_children"]
    errors = (tmp_path / "stderr").read_text()
    assert "Traceback" not in errors
    # Whether it was killed or stopped, the survivors name the rank that is lost, and the launcher the first to end.
    line = r"error: rank (\d) lost rank 2 in iteration 2\b"
    assert sorted(re.findall(line, errors)) == sorted("013" * len(found["worlds"]))
    assert errors.count("error: rank 2 failed first: killed by SIGKILL") == 2
