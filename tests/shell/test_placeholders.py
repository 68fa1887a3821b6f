"""Fills placeholders wherever they stand."""

from __future__ import annotations

import subprocess

import pytest

from zenith_tune.errors import CommandError
from zenith_tune.shell.placeholders import (
    fill_or_set,
    fill_placeholders,
    misspelt_placeholder,
    placeholder_names,
    unknown_placeholder,
)
from zenith_tune.study.parameters import Value

PARAMS: dict[str, Value] = {"tp": 4, "mbs": 2, "lr": 1e-05, "on": True, "method": "uniform"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("python t.py --tp {tp} --mbs={mbs}", "python t.py --tp 4 --mbs=2"),
        ("TP={tp} bash train.sh", "TP=4 bash train.sh"),
        ("bash -c 'python t.py --tp {tp}'", "bash -c 'python t.py --tp 4'"),
        ('bash -c "python t.py \\"{tp}\\""', 'bash -c "python t.py \\"4\\""'),
        ("cat > c <<E\ntp: {tp}\nE\npython t.py", "cat > c <<E\ntp: 4\nE\npython t.py"),
        ("for i in {tp} {mbs}; do echo $i; done", "for i in 4 2; do echo $i; done"),
        ("python t.py --out run{tp}x{mbs}", "python t.py --out run4x2"),
        ("$(echo {tp}) # {mbs}", "$(echo 4) # 2"),
        ("p {lr} {on} {method}", "p 1e-05 true uniform"),
        ("p 'unclosed {tp}", "p 'unclosed 4"),
    ],
)
def test_a_placeholder_is_filled_wherever_it_stands(text: str, expected: str) -> None:
    assert fill_placeholders(text, PARAMS)[0] == expected


@pytest.mark.parametrize("text", ["${tp}", "{{tp}}", "{pp}", "{tp", "tp}", "{tp,mbs}", "{ tp }", "$tp", "{}", "{1}"])
def test_what_only_resembles_a_placeholder_stays(text: str) -> None:
    assert fill_placeholders(text, PARAMS) == (text, set())
    assert placeholder_names(text, PARAMS) == set()


def test_the_names_that_were_used_are_reported() -> None:
    text = "TP={tp} p --tp {tp} --mbs {mbs} --x ${lr} {other}"
    assert fill_placeholders(text, PARAMS)[1] == {"tp", "mbs"} == placeholder_names(text, PARAMS)
    assert placeholder_names(text, ["tp", "other"]) == {"tp", "other"}


def test_a_value_is_not_filled_in_turn() -> None:
    assert fill_placeholders("p --a={a}", {"a": "{b}", "b": 1})[0] == "p --a='{b}'"


@pytest.mark.parametrize("value", ["a b", "it's", "$HOME", "`x`", "a;b", "", "*", "\n", '"'])
@pytest.mark.parametrize("template", ["{v}", "--k={v}", "x{v}y", "--k='a'{v}", "> /dev/null {v}"])
def test_outside_quotes_any_value_reaches_the_program_whole(value: str, template: str) -> None:
    text, _ = fill_placeholders(f"printf '%s\\0' {template} >&2", {"v": value})
    printed = subprocess.run(["bash", "-c", text], capture_output=True, check=True).stderr.decode()
    expected = template.replace("> /dev/null ", "").replace("'a'", "a").replace("{v}", value)
    assert printed == expected + "\0"


@pytest.mark.parametrize("value", ["a b", "it's", "$HOME", ""])
@pytest.mark.parametrize(
    "text", ["p '{v}'", 'p "--k={v}"', "bash -c 'p {v}'", "p $(c {v})", "c <<E\n{v}\nE", "p # {v}"]
)
def test_inside_quotes_a_value_that_the_shell_would_misread_is_refused_in_one_line(value: str, text: str) -> None:
    with pytest.raises(CommandError, match="quotes") as caught:
        fill_placeholders(text, {"v": value})
    assert "{v}" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("command", "unknown"),
    [
        ("train {mbs} {foo}", "foo"),
        ("train --a={foo} --b={mbs}", "foo"),
        ("FOO={foo} train {mbs}", "foo"),
        ("bash -c 'train {mbs} {foo}'", "foo"),
        ("train {foo}", None),
        ("train {mbs} ${foo} {{foo}} {1..3} {a,b} {}", None),
        ('train {mbs} \'{"optimizer": {"lr": 1}}\' "{\'a\': 1}"', None),
        ("train {mbs} | awk '{print}'", None),
        ("train {mbs} --run-name '{epoch}'", None),
        ("f() { train {mbs}; }; f", None),
    ],
)
def test_a_name_in_braces_beside_a_placeholder_must_be_one(command: str, unknown: str | None) -> None:
    assert unknown_placeholder(command, {"mbs", "tp"}) == unknown


@pytest.mark.parametrize("command", ["python own.py {tp} &", "python own.py &"])
def test_a_program_in_the_background_is_refused_with_how_to_write_it(command: str) -> None:
    with pytest.raises(CommandError) as refused:
        fill_or_set(command, {"tp": "--tp"}, {"tp": 2})
    assert "{tp}" not in refused.value.hint


def test_a_misspelt_placeholder_is_noticed() -> None:
    assert misspelt_placeholder("python train.py --tp {tpp} {other}", ["tp", "mbs"]) == ("tpp", "tp")


def test_an_unknown_placeholder_is_noticed() -> None:
    assert unknown_placeholder("python train.py --tp {tp} --layers {layers}", ["tp", "mbs"]) == "layers"
