from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from zenith_tune.record.view import TrialView
from zenith_tune.study.files import TrialFolder
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.study.trial_log import TrialLog, clean_line, lines_of, printable

MIB = 2**20


def write(folder: Path, data: bytes) -> TrialLog:
    path = folder / "a log.txt"
    path.write_bytes(data)
    return TrialLog(path)


def test_a_small_log_is_read_whole(tmp_path: Path) -> None:
    assert write(tmp_path, "one\nzwölf\n".encode()).text() == "one\nzwölf\n"


def test_a_log_that_is_not_there_reads_as_an_empty_one(tmp_path: Path) -> None:
    log = TrialLog(tmp_path / "nowhere.log")
    assert log.text() == ""
    assert log.tail_lines(5) == []


@pytest.mark.timeout(300)
def test_what_is_no_regular_file_reads_as_an_empty_log(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("somebody else's\n")
    (tmp_path / "link").symlink_to("other")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "folder", "fifo", "other/below", "/dev/zero"):
        log = TrialLog(tmp_path / name)
        assert log.text() == ""
        assert log.tail_lines(5) == []


def test_a_log_that_may_not_be_read_reads_as_an_empty_one(tmp_path: Path) -> None:
    log = write(tmp_path, b"secret\n")
    log.path.chmod(0)
    own = os.geteuid()
    if own == 0:
        os.seteuid(65534)  # root may read everything
    try:
        assert (log.text(), log.tail_lines(5)) == ("", [])
    finally:
        os.seteuid(own)


def test_bytes_that_are_no_text_do_not_stop_the_reading(tmp_path: Path) -> None:
    assert write(tmp_path, b"before\n\xff\xfe\x00\nafter\n").text() == "before\n��\x00\nafter\n"


def test_a_progress_bar_is_split_into_lines(tmp_path: Path) -> None:
    assert write(tmp_path, b"10%\r20%\r\ndone\n").text() == "10%\n20%\ndone\n"


def test_a_large_log_keeps_its_first_quarter_and_last_three_quarters(tmp_path: Path) -> None:
    text = write(tmp_path, b"".join(b"line %07d\n" % n for n in range(1000))).text(limit_bytes=1300)
    head, notice, tail = (part.splitlines() for part in text.partition("[... 11700 bytes left out ...]\n"))
    assert notice == ["[... 11700 bytes left out ...]"]
    assert head == [f"line {n:07d}" for n in range(25)]
    assert tail == [f"line {n:07d}" for n in range(925, 1000)]


def test_no_line_is_shown_half_where_a_large_log_is_cut(tmp_path: Path) -> None:
    text = write(tmp_path, b"".join(b"step time: %06d ms\n" % n for n in range(1000))).text(limit_bytes=1000)
    lines = [line for line in text.splitlines() if "left out" not in line]
    assert {len(line) for line in lines} == {len("step time: 000000 ms")}


def test_an_absurdly_long_line_keeps_only_its_ends(tmp_path: Path) -> None:
    text = write(tmp_path, b"first\n" + b"<" + b"x" * MIB + b">\nlast\n").text()
    first, long, last = text.splitlines()
    assert (first, last) == ("first", "last")
    assert len(long) < 70_000
    assert long.startswith("<x")
    assert long.endswith("x>")
    assert "bytes left out" in long


def test_a_line_of_64_kib_is_left_alone(tmp_path: Path) -> None:
    data = b"x" * 65536 + b"\n" + b"y" * 65536
    assert write(tmp_path, data).text() == data.decode()


def test_two_gigabytes_without_a_newline_are_read_in_a_moment(tmp_path: Path) -> None:
    path = tmp_path / "endless.log"
    with path.open("wb") as file:
        file.truncate(2 * 2**30)
        file.seek(0, 2)
        file.write(b"the end")
    started = time.process_time()
    text, tail = TrialLog(path).text(), TrialLog(path).tail_lines(2)
    assert time.process_time() - started < 20
    assert len(text) < MIB
    assert text.endswith("the end")
    assert tail == ["the end"]


def test_the_tail_has_the_last_lines_that_say_something(tmp_path: Path) -> None:
    log = write(tmp_path, b"one\ntwo\n\n\x1b[31mthree\x1b[0m\r\n   \n")
    assert log.tail_lines(2) == ["two", "three"]
    assert log.tail_lines(0) == []


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("\x1b[1;31merror\x1b[0m: bad", "error: bad"),
        ("\x1b]0;a new title\x07text", "text"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\x00b\x07c\x9b31md", "a b c 31md"),
        ("one\ntwo\tthree   four", "one two three four"),
        ("safe\u202egnp.exe", "safe gnp.exe"),
        ("\ud800half", "half"),
    ],
)
def test_a_line_for_the_terminal_has_no_escapes(text: str, clean: str) -> None:
    assert clean_line(text) == clean


def test_a_line_for_the_terminal_is_short(tmp_path: Path) -> None:
    assert clean_line("word " * 1000, limit=20) == "word word word word…"
    assert len(clean_line("x" * 50 * MIB)) == 300


def test_lines_end_at_newlines_and_carriage_returns_only() -> None:
    assert list(lines_of("a\r\nb\rc\n\nd\x0be\u2028f")) == ["a", "b", "c", "d\x0be\u2028f"]


def test_no_line_is_lost_between_the_pieces_of_a_large_text() -> None:
    text = "".join(f"{n}\n" for n in range(400_000))
    assert [int(line) for line in lines_of(text)] == list(range(400_000))


def test_a_page_shows_the_number_at_the_end_of_a_long_line(tmp_path: Path) -> None:
    line = " iteration 12/ 100 |" + " name of a field: 1.234E+00 |" * 20 + " throughput per GPU (TFLOP/s/GPU): 197.3 |"
    folder = TrialFolder(tmp_path)
    folder.log.write_text(f"starting\n{line}\n{'x' * 9000}\n")
    trial = Trial(params={}, outcome=Outcome.OK, value=1.0, folder=tmp_path)
    shown = TrialView(trial=trial).log_lines(2)
    assert shown[0].endswith("(TFLOP/s/GPU): 197.3 |") and 2000 <= len(shown[1]) <= 3000
    assert len(TrialLog(folder.log).tail_lines(1)[0]) == 300


def test_what_a_terminal_would_act_on_is_left_out_of_texts_wherever_they_are() -> None:
    hostile = {"cause": "a\x1b[2Jb\x07", "rows": [["\x1b]0;title\x07c\td\n", 3]]}
    assert printable(hostile) == {"cause": "ab", "rows": [["c\td\n", 3]]}


def test_a_log_that_is_no_file_is_empty() -> None:
    assert TrialLog(Path("no such file")).text() == ""
