from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

from zenith_tune.runners import base
from zenith_tune.runners.base import End, limit_log
from zenith_tune.runners.local.runner import LocalRunner
from zenith_tune.study.resources import Resources
from zenith_tune.units import MIB

LIMIT = 2 * MIB
PRINTS = """
import sys
for first in range(0, {lines}, 1000):
    sys.stdout.write("".join(f"line {{number:010d}} of the trial\\n" for number in range(first, first + 1000)))
print("the last line")
sys.exit(3)
"""


@pytest.fixture
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MAX_LOG_BYTES", LIMIT)


def numbers(data: bytes) -> list[int]:
    return [int(line.split()[1]) for line in data.splitlines() if line.startswith(b"line ")]


@pytest.mark.usefixtures("low_limit")
def test_a_trial_that_prints_tens_of_megabytes_runs_to_its_end_and_keeps_head_and_tail(tmp_path: Path) -> None:
    program = tmp_path / "prints.py"
    program.write_text(PRINTS.format(lines=1_000_000))
    runner = LocalRunner()
    job = runner.submit(f"{sys.executable} {program}", tmp_path, Resources())
    while (result := job.wait(0.01)) is None:
        pass
    runner.close()
    data = job.log_path.read_bytes()
    assert (result.end, result.exit_code) == (End.EXITED, 3)
    assert len(data) <= LIMIT
    assert data.endswith(b"\nthe last line\n")
    head, note, tail = data.partition(b"[... left out")
    assert note and note not in tail
    assert numbers(head) == list(range(len(numbers(head))))
    assert len(head) > LIMIT // 5 and len(tail) > LIMIT // 5
    assert numbers(tail)[-1] == 999_999


@pytest.mark.usefixtures("low_limit")
def test_a_log_that_is_cut_again_and_again_has_one_gap(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with log.open("ab", buffering=0) as file:
        for number in range(300_000):
            file.write(b"line %010d\n" % number)
            if number % 5000 == 0:
                limit_log(log)
    limit_log(log)
    shown = numbers(log.read_bytes())
    assert shown == sorted(shown) and shown[-1] == 299_999
    assert sum(later - number > 1 for number, later in itertools.pairwise(shown)) == 1


@pytest.mark.usefixtures("low_limit")
def test_one_line_without_end_is_cut_as_well(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_bytes(b"x" * 3 * LIMIT + b"end")
    limit_log(log)
    data = log.read_bytes()
    assert len(data) <= LIMIT and data.endswith(b"xend") and b"left out" in data


@pytest.mark.usefixtures("low_limit")
def test_what_is_no_log_stays_as_it_is(tmp_path: Path) -> None:
    short, link, precious = tmp_path / "short", tmp_path / "link", tmp_path / "precious"
    short.write_bytes(b"x" * LIMIT)
    precious.write_bytes(b"y" * 2 * LIMIT)
    link.symlink_to(precious)
    for path in (short, link, tmp_path / "missing", tmp_path):
        limit_log(path)
    assert short.stat().st_size == LIMIT and precious.stat().st_size == 2 * LIMIT
