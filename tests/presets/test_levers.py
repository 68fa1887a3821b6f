"""The examples of levers."""

from __future__ import annotations

from zenith_tune.presets.levers import Lever, compatible


def test_a_lever_gains_by_the_share_of_its_part() -> None:
    assert Lever(name="tp_overlap", saves={"tp": 0.5}).predicted_gain({"tp": 0.2, "compute": 0.8}) == 0.1


def test_levers_that_exclude_each_other_do_not_go_together() -> None:
    a, b = Lever(name="a", excludes=frozenset({"b"})), Lever(name="b")
    assert [lever.name for lever in compatible([a, b, Lever(name="c")])] == ["a", "c"]
