from __future__ import annotations

import itertools
import os
import re
import sys
from pathlib import Path

import pytest

from zenith_tune.runners.base import End
from zenith_tune.runners.launch import log_limit
from zenith_tune.runners.launch.log_limit import LogLimit
from zenith_tune.runners.local.runner import LocalRunner
from zenith_tune.study.resources import Resources
from zenith_tune.units import MIB

LIMIT = 2 * MIB
NOTE = re.compile(rb"\[\.\.\. +(\d+) bytes left out \.\.\.\]\n")
PRINTS = """
import sys
for first in range(0, {lines}, 1000):
    sys.stdout.write("".join(f"line {{number:010d}} of the trial\\n" for number in range(first, first + 1000)))
print("the last line")
sys.exit(3)
"""


@pytest.fixture
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_limit, "MAX_LOG_BYTES", LIMIT)
    monkeypatch.setattr(log_limit, "_PIECE_BYTES", 64 * 1024)


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
    head, tail = data[: NOTE.search(data).start()], data[NOTE.search(data).end() :]  # type: ignore[union-attr]
    assert len(NOTE.findall(data)) == 1
    assert numbers(head) == list(range(len(numbers(head))))
    assert len(head) > LIMIT // 5 and len(tail) > LIMIT // 5
    assert numbers(tail)[-1] == 999_999


@pytest.mark.usefixtures("low_limit")
def test_the_note_counts_every_byte_of_all_cuts(tmp_path: Path) -> None:
    log, limit, printed = tmp_path / "log.txt", LogLimit(tmp_path / "log.txt"), 0
    with log.open("ab", buffering=0) as file:
        for number in range(300_000):
            printed += file.write(b"line %010d\n" % number)
            if number % 5000 == 0:
                limit.keep()
    limit.keep()
    data = log.read_bytes()
    note = NOTE.search(data)
    assert note is not None and printed > 2 * LIMIT
    assert len(data) - len(note[0]) + int(note[1]) == printed
    shown = numbers(data)
    assert shown == sorted(shown) and shown[-1] == 299_999
    assert sum(later - number > 1 for number, later in itertools.pairwise(shown)) == 1


@pytest.mark.usefixtures("low_limit")
def test_what_is_printed_last_is_kept_though_it_was_printed_during_the_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, last = tmp_path / "log.txt", [b"line %010d\n" % number for number in range(200_000, 400_000)]
    log.write_bytes(b"".join(b"line %010d\n" % number for number in range(200_000)))

    pread = os.pread

    def printed_meanwhile(file: int, size: int, offset: int) -> bytes:
        with log.open("ab") as more:
            more.write(b"".join(last[:10_000]))
            del last[:10_000]
        return pread(file, size, offset)

    monkeypatch.setattr(os, "pread", printed_meanwhile)
    LogLimit(log).keep()
    data = log.read_bytes()
    note = NOTE.search(data)
    assert note is not None and not last and len(data) <= LIMIT
    assert len(data) - len(note[0]) + int(note[1]) == 400_000 * len(b"line 0000000000\n")
    assert data.endswith(b"\nline 0000399999\n")


@pytest.mark.usefixtures("low_limit")
def test_one_line_without_end_is_cut_as_well(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_bytes(b"x" * 3 * LIMIT + b"end")
    LogLimit(log).keep()
    data = log.read_bytes()
    assert len(data) <= LIMIT and data.endswith(b"xend") and NOTE.search(data)


@pytest.mark.usefixtures("low_limit")
def test_a_hole_in_a_log_takes_no_room_and_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with log.open("wb") as file:
        os.ftruncate(file.fileno(), 4 * LIMIT)
    LogLimit(log).keep()
    assert log.stat().st_size == 4 * LIMIT


@pytest.mark.usefixtures("low_limit")
def test_what_is_no_log_stays_as_it_is(tmp_path: Path) -> None:
    short, link, precious = tmp_path / "short", tmp_path / "link", tmp_path / "precious"
    short.write_bytes(b"x" * LIMIT)
    precious.write_bytes(b"y" * 2 * LIMIT)
    link.symlink_to(precious)
    for path in (short, link, tmp_path / "missing", tmp_path):
        LogLimit(path).keep()
    assert short.stat().st_size == LIMIT and precious.stat().st_size == 2 * LIMIT
