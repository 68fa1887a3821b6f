"""What changed since a marker."""

from __future__ import annotations

import pytest

from zenith_tune.serve.live_study import ChangeLog


def test_only_what_changed_since_a_marker_is_sent() -> None:
    log = ChangeLog()
    assert log.take({"best": 1, "name": "s"}, {1: {"number": 1}})
    first = log.marker
    assert not log.take({"best": 1, "name": "s"}, {1: {"number": 1}}) and log.marker == first
    assert log.take({"best": 2, "name": "s"}, {1: {"number": 1}, 2: {"number": 2}})
    second = log.marker
    assert log.since(first) == {"marker": second, "is_all": False, "fields": {"best": 2}, "trials": [{"number": 2}]}
    assert log.since(second)["fields"] == {} and log.since(second)["trials"] == []
    log.take({"best": 2, "name": "s"}, {1: {"number": 1, "gain": 0.1}, 2: {"number": 2}})
    assert log.since(second)["trials"] == [{"number": 1, "gain": 0.1}]
    assert len(log.since(first)["trials"]) == 2


@pytest.mark.parametrize("marker", [None, "", "x", "00000000-1", "-1", "0" * 8 + "-" + "9" * 20])
def test_a_marker_of_somebody_else_is_answered_with_everything(marker: str | None) -> None:
    log = ChangeLog()
    log.take({"name": "s"}, {1: {"number": 1}})
    snapshot = log.since(marker)
    assert snapshot["is_all"] and snapshot["fields"] == {"name": "s"} and snapshot["trials"] == [{"number": 1}]


def test_a_marker_of_later_than_now_is_answered_with_everything() -> None:
    log = ChangeLog()
    log.take({"name": "s"}, {})
    assert log.since(log.marker.replace("-1", "-2"))["is_all"]


def test_when_a_trial_vanishes_everything_is_sent_anew() -> None:
    log = ChangeLog()
    log.take({"name": "s"}, {1: {"number": 1}, 2: {"number": 2}})
    before = log.marker
    assert log.take({"name": "s"}, {2: {"number": 2}})
    snapshot = log.since(before)
    assert snapshot["is_all"] and snapshot["trials"] == [{"number": 2}]
