"""The examples of structure."""

from __future__ import annotations

from zenith_tune.shell.scripts.structure import holds, names_set


def test_builtins_set_names() -> None:
    assert sorted(names_set("printf", ["-v", "TP", "%d", "4"])) == ["TP"]
    assert sorted(names_set("read", ["-r", "A", "B"])) == ["A", "B"]


def test_tests_of_strings_are_known() -> None:
    assert holds(["[", "fp8", "=", "fp8", "]"])
    assert holds(["[[", "-z", "", "]]"])
    assert holds(["test", "-f", "train.sh"]) is None
