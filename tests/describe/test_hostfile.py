from __future__ import annotations

import pytest

from tests.mentions import mentions
from zenith_tune.describe.hostfile import parse_hostfile
from zenith_tune.errors import UsageError


def test_what_mpi_writes_beside_the_slots_is_left_alone() -> None:
    assert parse_hostfile("n1 slots=4 max_slots=8\nn2 slots=999999#spare\n", "hosts") == {"n1": 4, "n2": 999_999}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("n1\n", ("line 1 of hosts", "'n1'")),
        ("n1 slots=8x\n", ("line 1 of hosts", "'n1 slots=8x'")),
        ("n1 slots=99999999999999999999\n", ("line 1 of hosts", "99999999999999999999")),
        ("n1 slots=8\n\nn1 slots=4\n", ("line 3 of hosts", "'n1'")),
    ],
)
def test_a_line_that_makes_no_sense_is_refused(text: str, named: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as refused:
        parse_hostfile(text, "hosts")
    assert mentions(refused.value, *named)


def test_a_hostfile_has_slots_and_comments() -> None:
    assert parse_hostfile("n1 slots=8\n# spare\nn2 slots=4\n", "hosts") == {"n1": 8, "n2": 4}
