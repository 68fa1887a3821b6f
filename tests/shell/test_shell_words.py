"""Reads shell texts, and holds every reading against what a real shell makes of them."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.thoroughness import examples
from zenith_tune.errors import CommandError
from zenith_tune.shell.lexer import Operator, Redirection, Word, lex
from zenith_tune.shell.options import Splice, apply_splices, splices_in_source


def words(text: str) -> list[str]:
    return [token.value for token in lex(text) if isinstance(token, Word)]


def shape(text: str) -> list[str]:
    """Return the tokens in a form that is easy to read."""
    return [
        token.value
        if isinstance(token, Word)
        else f"{token.operator}:{token.target.value}"
        if isinstance(token, Redirection)
        else f"({token.text})"
        for token in lex(text)
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("python train.py --lr 1e-5", ["python", "train.py", "--lr", "1e-5"]),
        ("""'a b' "c d" e\\ f""", ["a b", "c d", "e f"]),
        ("""--k="v" "--k=v" --'k'=v""", ["--k=v", "--k=v", "--k=v"]),
        (r"""'it'\''s' "say \"hi\"" "a\b" """, ["it's", 'say "hi"', "a\\b"]),
        (r"$'\q' ", ["\\q"]),
        (r"$'tab\there' $'it\'s' $'\x41\101\u0042' $'\\'", ["tab\there", "it's", "AAB", "\\"]),
        ("a \\\n  b\\\nc", ["a", "bc"]),
        ("'' \"\" $''", ["", "", ""]),
        ("a#b # a comment 'never closed", ["a#b"]),
        ("A=(1 'b c' 2) x", ["A=(1 'b c' 2)", "x"]),
        ("$(echo ')' \"(\") `date` ${x:-a b} $((1+2))", ["$(echo ')' \"(\")", "`date`", "${x:-a b}", "$((1+2))"]),
        ("\"${x:-'}'}\" b", ["${x:-'}'}", "b"]),
        ("größe=3 日本", ["größe=3", "日本"]),
    ],
)
def test_words_are_what_the_shell_would_pass(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    ("text", "values", "is_static"),
    [
        ('"${x:-it\'s}" b', ["${x:-it's}", "b"], [False, True]),
        (r"$'a\tb' c", [r"$a\tb", "c"], [False, True]),
    ],
)
def test_sh_knows_no_ansi_quotes_and_an_apostrophe_in_a_default_is_a_letter_to_it(
    text: str, values: list[str], is_static: list[bool]
) -> None:
    found = [token for token in lex(text, is_posix=True) if isinstance(token, Word)]
    assert [token.value for token in found] == values
    assert [token.is_static for token in found] == is_static


def test_bash_looks_for_the_other_half_of_an_apostrophe_in_a_default() -> None:
    with pytest.raises(CommandError):
        lex('"${x:-it\'s}" b')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a|b||c&&d;e&f", ["a", "(|)", "b", "(||)", "c", "(&&)", "d", "(;)", "e", "(&)", "f"]),
        ("(a) |& b;;", ["(()", "a", "())", "(|&)", "b", "(;;)"]),
        ("a > f 2>&1 >>g <h &>i >|j 3<&-", ["a", ">:f", ">&:1", ">>:g", "<:h", "&>:i", ">|:j", "<&:-"]),
        ("a 2>&1>log", ["a", ">&:1", ">:log"]),
        ("a 1>x b2>y", ["a", ">:x", "b2", ">:y"]),
        ("a > >(tee log) b", ["a", ">:>(tee log)", "b"]),
        ("a <<< 'b c'\nd", ["a", "<<<:b c", "(\n)", "d"]),
        ("cat <<EOF > f\n'not a quote\nEOF\nb", ["cat", "<<:EOF", ">:f", "(\n)", "b"]),
        ("cat <<-'E O'\n\tx\n\tE O\nb", ["cat", "<<-:E O", "(\n)", "b"]),
        ("cat <<A <<B\n1\nA\n2\nB\nc", ["cat", "<<:A", "<<:B", "(\n)", "c"]),
        ("a # comment\nb", ["a", "(#)", "(\n)", "b"]),
    ],
)
def test_operators_and_redirections_stand_apart_from_words(text: str, expected: list[str]) -> None:
    assert shape(text) == expected


@pytest.mark.parametrize(
    ("text", "static"),
    [
        ("plain", 5),
        ("--lr=$LR", 5),
        ('"a$b"', 1),
        ("'$b'", 2),
        ("\\$b", 2),
        ("*.py", 0),
        ("'*'.py", 4),
        ("a[12]b", 1),
        ("[", 1),
        ("~/x", 0),
        ("a~", 2),
        ("x={a,b}", 2),
        ("{tp}", 4),
        ("'{a,b}'", 5),
        ("a{1..3}", 1),
    ],
)
def test_what_the_shell_expands_is_known_as_dynamic(text: str, static: int) -> None:
    [word] = lex(text)
    assert isinstance(word, Word)
    assert word.static == static


@pytest.mark.parametrize("text", ["a 'b", 'a "b', "a $(b", "a ${b", "a `b", "a $'b", 'a "$(b"', "a <(b"])
def test_an_unclosed_quote_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(CommandError, match="closed") as caught:
        lex(text)
    assert "\n" not in str(caught.value)


def test_the_line_about_an_unclosed_quote_shows_where_it_opens_and_nothing_after() -> None:
    with pytest.raises(CommandError, match=r"--hf-token '$"):
        lex("python train.py --hf-token 'hf_secret")


@pytest.mark.parametrize(
    "text", ["python t.py --hf-token hf_secret 'x", "p hf_secret'x", 'p --k=hf_secret"', "p --k 'hf_secret' $(x"]
)
def test_the_line_about_an_unclosed_quote_shows_no_words_before_it(text: str) -> None:
    with pytest.raises(CommandError, match=r"\b\d+\b.*: \S$") as caught:
        lex(text)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["a >", "a > ;", "a 2>&1 > # b", "a \\"])
def test_what_the_shell_would_refuse_or_misread_at_the_end_is_refused(text: str) -> None:
    with pytest.raises(CommandError):
        lex(text)


def test_every_token_knows_its_exact_place() -> None:
    text = "A=1 'my prog' --k=\"v\" 2>&1 | tee log # done"
    assert [text[token.start : token.end] for token in lex(text)] == [
        *("A=1", "'my prog'", '--k="v"', "2>&1", "|", "tee", "log", "# done"),
    ]


SHELL_TEXTS = st.text(alphabet="ab1-=~*?[]{},.#!^%$'\"\\ \t\nxu0:@/é", max_size=24)


@settings(max_examples=examples(500), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(text=SHELL_TEXTS)
def test_any_static_text_is_read_as_a_real_shell_reads_it(text: str) -> None:
    try:
        tokens = lex(text)
    except CommandError:
        return
    assume(tokens and all(isinstance(token, Word) and token.is_static for token in tokens))
    script = f"printf '%s\\0' {text}\n"
    ran = subprocess.run(["bash", "-c", script], capture_output=True, cwd="/", env={"HOME": "/h"}, check=False)
    assert [token.value for token in tokens if isinstance(token, Word)] == ran.stdout.decode().split("\0")[:-1]


@settings(max_examples=examples(300), deadline=None, derandomize=True)
@given(text=SHELL_TEXTS)
def test_a_text_that_a_real_shell_accepts_is_never_refused(text: str) -> None:
    try:
        lex(text)
    except CommandError:
        # A trailing backslash is all that bash takes and we do not: whatever is added behind it would be eaten.
        parsed = subprocess.run(["bash", "-n", "-c", f": {text}"], capture_output=True, check=False)
        assert parsed.returncode != 0 or text.endswith("\\")


QUOTED = st.builds(
    lambda pieces: "".join(pieces),
    st.lists(
        st.one_of(
            st.sampled_from(["ab", "\\ ", "\\'", "$X", "''", '""', "$'\\t\\''", '"\\"$Y\\\\"']),
            st.text(alphabet='a b"$\\', max_size=5).map(lambda inner: f"'{inner}'"),
            st.text(alphabet="a b'", max_size=5).map(lambda inner: f'"{inner}"'),
        ),
        min_size=1,
        max_size=5,
    ),
)


@settings(max_examples=examples(500), deadline=None, derandomize=True)
@given(source=QUOTED, data=st.data(), new=st.text(alphabet="a 4'\"$\\`", max_size=4))
def test_an_edit_of_a_words_value_lands_in_the_source_whatever_the_quotes(
    source: str, data: st.DataObject, new: str
) -> None:
    text = f"first {source} last"
    word = lex(text)[1]
    assert isinstance(word, Word)
    # Edits end where parts end or lie within fixed text: half an expansion or half an escape is never edited.
    edges = [0]
    for part in word.parts:
        edges.append(edges[-1] + len(part.value))
    start, end = sorted(data.draw(st.tuples(st.sampled_from(edges), st.sampled_from(edges))))
    assume(new or end - start < len(word.value))
    splice = Splice(start, end, new)
    edited = lex(apply_splices(text, splices_in_source(word, [splice])))
    assert [token.value for token in edited if isinstance(token, Word)] == [
        "first",
        apply_splices(word.value, [splice]),
        "last",
    ]


def test_an_empty_text_has_no_tokens() -> None:
    assert lex("") == [] == lex(" \t \\\n ")


def test_a_newline_is_an_operator() -> None:
    assert lex("a\nb")[1] == Operator(1, 2, "\n")
