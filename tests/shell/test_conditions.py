from __future__ import annotations

import itertools
import shutil
import subprocess

import pytest

from zenith_tune.shell.scripts.structure import MAYBE, RUN, SKIP, Branch, both, either, holds, inverse

TESTS = [
    "[ a = a ]",
    "[ a = b ]",
    "[ a != b ]",
    "[[ a == a ]]",
    "[[ a != a ]]",
    "[ -n x ]",
    "[ -z x ]",
    "[ x ]",
    "test 3 -gt 2",
    "[ 3 -le 2 ]",
    "[ 2 -eq 2 ]",
    "[ 2 -ne 2 ]",
    "[ 2 -ge 3 ]",
    "[ -1 -lt 0 ]",
    "[ ! a = a ]",
    "true",
    "false",
    ":",
]


@pytest.mark.slow
@pytest.mark.parametrize("text", TESTS)
def test_a_test_holds_where_bash_says_so(text: str) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    assert holds(text.split()) is (subprocess.run([bash, "-c", text]).returncode == 0)


@pytest.mark.parametrize(
    "words",
    [
        ["[", "-f", "train.sh", "]"],
        ["[[", "a", "==", "a*", "]]"],
        ["[", "$X", "=", "a", "]"],
        ["[", "a", "-gt", "1", "]"],
        ["grep", "-q", "x", "file"],
        ["[[", "a", "==", "a", "b", "==", "b", "]]"],
        [],
    ],
)
def test_what_cannot_be_told_from_the_text_is_unknown(words: list[str]) -> None:
    assert holds(words) is None


def test_unknown_is_a_third_truth() -> None:
    for left, right in itertools.product((True, False), repeat=2):
        assert (both(left, right), either(left, right)) == (left and right, left or right)
    assert (both(None, False), both(None, True), either(None, True), either(None, False)) == (False, None, True, None)
    assert inverse(None) is None


@pytest.mark.parametrize(
    ("first", "second", "states"),
    [
        (True, True, (RUN, SKIP, SKIP)),
        (False, True, (SKIP, RUN, SKIP)),
        (False, False, (SKIP, SKIP, RUN)),
        (None, False, (MAYBE, SKIP, MAYBE)),
        (None, True, (MAYBE, MAYBE, SKIP)),
        (False, None, (SKIP, MAYBE, MAYBE)),
    ],
)
def test_one_branch_runs_or_those_that_may(first: bool | None, second: bool | None, states: tuple[str, ...]) -> None:
    branch = Branch.of_if(RUN)
    seen = []
    for index, truth in enumerate((first, second)):
        if index:
            branch.begin_condition()
        branch.test(truth, "")
        branch.begin_body()
        seen.append(branch.state)
    branch.begin_else()
    assert (*seen, branch.state) == states


def test_nothing_runs_inside_of_what_does_not() -> None:
    for outer, inner in ((SKIP, SKIP), (MAYBE, MAYBE), (RUN, RUN)):
        branch = Branch.of_if(outer)
        branch.test(True, "")
        branch.begin_body()
        assert branch.state == inner
    assert (Branch.of_loop(SKIP).state, Branch.of_loop(RUN).state) == (SKIP, MAYBE)
