from __future__ import annotations

from zenith_tune.runners.launch.gang import GangLog


def test_lines_of_two_nodes_are_never_mixed_into_one() -> None:
    log = bytearray()
    gang = GangLog(["n1", "n2"], log.extend)
    for text in (b"one", b" line", b"\r\nnext"):
        gang.feed(0, text)
        gang.feed(1, text)
    gang.close(0)
    gang.close(1)
    assert bytes(log) == b"one line\r\n[n2] one line\r\nnext\n[n2] next\n"


def test_a_progress_bar_is_seen_while_it_moves() -> None:
    log = bytearray()
    GangLog(["n1", "n2"], log.extend).feed(1, b"10%\r20%\r30")
    assert bytes(log) == b"[n2] 10%\r[n2] 20%\r"


def test_a_line_without_an_end_is_written_in_pieces_and_not_held_for_ever() -> None:
    log = bytearray()
    gang = GangLog(["n1", "n2"], log.extend)
    for _ in range(3):
        gang.feed(0, b"x" * 40_000)
    assert len(log) == 80_001


def test_what_one_node_alone_prints_is_written_byte_for_byte_at_once() -> None:
    log = bytearray()
    GangLog(["n1"], log.extend).feed(0, b"no end of line")
    assert bytes(log) == b"no end of line"
