from __future__ import annotations

import pytest

from zenith_tune.errors import CommandError
from zenith_tune.shell.lexer import Word, lex
from zenith_tune.shell.scripts.interpreter import REST, Budget, ShellVariables


def variables(*assignments: str, arguments: tuple[str, ...] = ("one", "two"), **environment: str) -> ShellVariables:
    found = ShellVariables(environment=environment, arguments=arguments)
    for text in assignments:
        found.assign(word(text))
    return found


def word(text: str) -> Word:
    [token] = lex(text)
    assert isinstance(token, Word)
    return token


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("$A", ["a", "b"]),
        ('"$A"', ["a b"]),
        ("x${A}y", ["xa", "by"]),
        ("'$A'", ["$A"]),
        ("${L[@]}", ["p", "q", "r"]),
        ('"${L[@]}"', ["p", "q r"]),
        ('"x${L[@]}y"', ["xp", "q ry"]),
        ("${L[1]}", ["q", "r"]),
        ("$L", ["p"]),
        ("$1-${2}", ["one-two"]),
        ('"$@"', ["one", "two"]),
        ('"${@:2}"', ["two"]),
        ("$HOST", ["h"]),
        ("$UNSET", []),
        ('"$UNSET"', [""]),
        ("${UNSET:-$A}", ["a", "b"]),
        ("${UNSET-'c d'}", ["c", "d"]),
        ("${A:+yes}", ["yes"]),
        ("${UNSET:+yes}", []),
        ("$((N * 2 + 1))", ["17"]),
        ("$(($N/3%2))", ["0"]),
        ("$(date)", ["$(date)"]),
        ("`date`", ["`date`"]),
        ("${A%b}", ["${A%b}"]),
        ("${#L[@]}", ["${#L[@]}"]),
        ("$((A + 1))", ["$((A + 1))"]),
        ("[0]*3+[1]*58", ["[0]*3+[1]*58"]),
    ],
)
def test_a_word_stands_for_what_a_shell_makes_of_it(text: str, words: list[str]) -> None:
    found = variables('A="a b"', 'L=(p "q r")', "N=8", HOST="h")
    assert found.expand(word(text)) == words


def test_a_value_that_may_have_changed_is_not_trusted() -> None:
    found = variables("TP=1", "L=(p)")
    found.assign(word("TP=2"), is_certain=False)
    found.assign(word("L+=(q)"), is_certain=False)
    assert found.expand(word("$TP")) == ["$TP"]
    assert (found.expand(word("${L[@]}")), found.used) == (["p"], {"L"})
    found.assign(word("TP=4"))
    assert found.expand(word("$TP")) == ["4"]


def test_a_script_that_is_started_gets_arguments_and_variables_but_changes_none_here() -> None:
    found = variables("TP=1", "L=(p)")
    inner = found.child(["x", REST])
    inner.assign(word("TP=2"))
    inner.assign(word("L+=(q)"))
    assert (found.expand(word("$TP")), found.expand(word("${L[@]}"))) == (["1"], ["p"])
    assert inner.expand(word('"$@"')) == ["x", REST]
    assert inner.expand(word("$2")) == []


def test_an_element_that_is_set_makes_the_list_unsure_and_unset_empties_it() -> None:
    found = variables("L=(p q)", "L[1]=x")
    assert found.expand(word("${L[@]}")) == ["${L[@]}"]
    found.forget("L")
    assert found.expand(word("${L[@]}")) == []


def test_a_budget_ends_with_its_last_command() -> None:
    budget = Budget(num_commands=1)
    budget.take_command()
    with pytest.raises(CommandError, match="20000"):
        budget.take_command()
