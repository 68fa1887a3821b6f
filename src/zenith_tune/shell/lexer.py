"""The words and operators of a shell text, each with its exact place: nothing is expanded and nothing is run."""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from zenith_tune.errors import CommandError

# The tokens are named tuples: a command is read in tens of microseconds, and frozen dataclasses would double that.


class Quote(Enum):
    """The quotes around a part of a word."""

    NONE = "none"
    SINGLE = "'"
    DOUBLE = '"'
    ANSI = "$'"


class Part(NamedTuple):
    """A stretch of a word: its source span, and what the shell makes of it.

    A value is as long as its span, character for character, or it is the one character of an escape, or nothing.
    """

    quote: Quote
    dynamic: bool
    """Whether the shell expands it; `value` is then the source."""
    start: int
    end: int
    value: str


class Word(NamedTuple):
    """A word: its span with quotes, its value without, and how much of that value is known before it runs."""

    start: int
    end: int
    value: str
    static: int
    parts: tuple[Part, ...]

    @property
    def is_static(self) -> bool:
        """Whether the shell expands nothing in it."""
        return self.static == len(self.value)


class Redirection(NamedTuple):
    """A redirection with the word it points at, such as `2>&1` or `> log`."""

    start: int
    end: int
    operator: str
    target: Word


class Operator(NamedTuple):
    """A control operator, a newline, or a comment (as `#`)."""

    start: int
    end: int
    text: str


Token = Word | Redirection | Operator


_BLANKS = re.compile(r"(?:[ \t]|\\\n)+")
_COMMENT = re.compile(r"#[^\n]*")
_COMMENT_BEHIND = re.compile(r"(?<=[\s(;])#[^\n]*")
_REDIRECTION = re.compile(r"(?:[0-9]+|\{[A-Za-z_]\w*\})?(&>>|&>|<<-|<<<|<<|<>|<&|>&|>>|>\||[<>](?!\())")
_DESCRIPTOR = re.compile(r"[0-9]+-?|-")
_OPERATOR = re.compile(r";;&|;;|;&|&&|&|\|\||\|&|[|;()\n]")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_@%+=:,./-]+(?=[ \t\n;|&<>)]|\Z)")
_ORDINARY = re.compile(r"[^ \t\n'\"\\$`*?\[~<>|&;()]+")
_IN_DOUBLE = re.compile(r'[^"\\$`]+')
_IN_ANSI = re.compile(r"[^'\\]+")
_ANSI_ESCAPE = re.compile(r"\\(?:x[0-9A-Fa-f]{1,2}|u[0-9A-Fa-f]{1,4}|U[0-9A-Fa-f]{1,8}|[0-7]{1,3}|c.|.)", re.DOTALL)
_ANSI_NAMED = dict(zip("abeEfnrtv\\'\"?", "\a\b\x1b\x1b\f\n\r\t\v\\'\"?", strict=True))
_PARAMETER = re.compile(r"\$(?:[A-Za-z_]\w*|[0-9@*#?$!-])", re.ASCII)
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=\Z", re.ASCII)
_CLOSERS = {"(": ")", "{": "}", "[": "]"}
_BRACKETS = re.compile(r"\[\S+\]")
_BRACE_LIST = re.compile(r",|\.\.")
_NAME_BEFORE = re.compile(r"(?<!\S)(?:--?[A-Za-z][\w.-]*(?:=|[ \t]+)|[A-Za-z_]\w*=)\$?\Z")
_WORD_ENDS = frozenset(" \t\n;|&()<>")


def lex(text: str, *, is_posix: bool = False) -> list[Token]:
    """Return the tokens of a shell text, or raise `CommandError` where a quote or bracket is never closed.

    Bash reads it, unless it `is_posix`: for sh, which on most machines knows no `$'..'`, so its value is unknown.

    >>> [token.value for token in lex("python 'my train.py' --lr=$LR") if isinstance(token, Word)]
    ['python', 'my train.py', '--lr=$LR']
    """
    return _Lexer(text, is_posix).tokens()


class _Lexer:
    """A reading of a text from left to right."""

    def __init__(self, text: str, is_posix: bool) -> None:
        self.text, self.is_posix = text, is_posix
        self.at = 0
        self.heredocs: list[tuple[str, str]] = []
        """Delimiters of bodies that begin on the next line, each with the pattern of the tabs before it."""

    def tokens(self) -> list[Token]:
        found: list[Token] = []
        while (token := self._token()) is not None:
            found.append(token)
        return found

    def _token(self) -> Token | None:
        text = self.text
        if blanks := _BLANKS.match(text, self.at):
            self.at = blanks.end()
        start = self.at
        if start >= len(text):
            return None
        if word := _PLAIN_WORD.match(text, start):
            # Digits that touch a redirection are its file descriptor, not a word.
            if text[word.end() : word.end() + 1] not in ("<", ">") or not word.group().isdecimal():
                return self._plain_word(word)
        elif comment := _COMMENT.match(text, start):
            self.at = comment.end()
            return Operator(start, self.at, "#")
        if redirection := _REDIRECTION.match(text, start):
            return self._redirection(redirection)
        if operator := _OPERATOR.match(text, start):
            return self._operator(operator)
        parts: list[Part] = []
        while self.at < len(text) and (text[self.at] not in _WORD_ENDS or self._opens_brackets(start)):
            self._read_part(start, parts)
        return _joined(start, self.at, tuple(parts))

    def _plain_word(self, match: re.Match[str]) -> Word:
        value, start, self.at = match.group(), match.start(), match.end()
        return Word(start, self.at, value, len(value), (Part(Quote.NONE, False, start, self.at, value),))

    def _operator(self, match: re.Match[str]) -> Operator:
        self.at = match.end()
        if match.group() == "\n":
            for delimiter, tabs in self.heredocs:
                end = re.compile(rf"^{tabs}{re.escape(delimiter)}$\n?", re.MULTILINE).search(self.text, self.at)
                self.at = end.end() if end else len(self.text)
            self.heredocs.clear()
        return Operator(match.start(), match.end(), match.group())

    def _redirection(self, match: re.Match[str]) -> Redirection:
        self.at, operator = match.end(), match.group(1)
        descriptor = _DESCRIPTOR.match(self.text, self.at) if operator in (">&", "<&") else None
        target = self._plain_word(descriptor) if descriptor else self._token()
        if not isinstance(target, Word):
            raise CommandError(f"a redirection needs a file, but {match.group()!r} in the training command has none")
        if operator in ("<<", "<<-"):
            self.heredocs.append((target.value, r"\t*" if operator == "<<-" else ""))
        return Redirection(match.start(), target.end, operator, target)

    def _opens_brackets(self, start: int) -> bool:
        """Tell whether a process substitution `<(..)` or the list of an array `A=(..)` begins here."""
        if self.text[self.at] in "<>":
            return self.text.startswith("(", self.at + 1)
        return self.text[self.at] == "(" and _ARRAY.match(self.text[start : self.at]) is not None

    def _read_part(self, start: int, parts: list[Part]) -> None:
        char = self.text[self.at]
        if char == "'":
            self._read_single(parts)
        elif char == '"':
            self._read_double(parts)
        elif char == "\\":
            self._read_escape(parts)
        elif char in "$`":
            self._read_dollar(Quote.NONE, parts)
        elif char in "<>(":
            self._add(parts, Quote.NONE, True, self._closing(self.at + (char != "(")))
        elif char in "*?[~":
            self._add(parts, Quote.NONE, self._expands(start), self.at + 1)
        else:
            match = _ORDINARY.match(self.text, self.at)
            self._add(parts, Quote.NONE, False, match.end() if match else self.at + 1)

    def _expands(self, start: int) -> bool:
        """Tell whether the shell would make file names or a home folder of the sign here."""
        char = self.text[self.at]
        if char == "~":
            return self.at == start or self.text[self.at - 1] in "=:"
        # Without its other half, as in `[ -f x ]`, a bracket is only a letter.
        return char != "[" or _BRACKETS.match(self.text, self.at) is not None

    def _add(self, parts: list[Part], quote: Quote, dynamic: bool, end: int, value: str | None = None) -> None:
        source = self.text[self.at : end]
        parts.append(Part(quote, dynamic, self.at, end, source if value is None else value))
        self.at = end

    def _read_single(self, parts: list[Part]) -> None:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            raise self._unclosed(self.at)
        self.at += 1
        self._add(parts, Quote.SINGLE, False, end)
        self.at = end + 1

    def _read_double(self, parts: list[Part]) -> None:
        text, opening = self.text, self.at
        self.at += 1
        self._add(parts, Quote.DOUBLE, False, self.at)
        while not text.startswith('"', self.at):
            if match := _IN_DOUBLE.match(text, self.at):
                self._add(parts, Quote.DOUBLE, False, match.end())
            elif self.at + 1 >= len(text):
                raise self._unclosed(opening)
            elif text[self.at] != "\\":
                self._read_dollar(Quote.DOUBLE, parts)
            elif (escaped := text[self.at + 1]) in '$`"\\\n':
                self._add(parts, Quote.DOUBLE, False, self.at + 2, escaped.strip("\n"))
            else:
                self._add(parts, Quote.DOUBLE, False, self.at + 1)
        self.at += 1

    def _read_escape(self, parts: list[Part]) -> None:
        if self.at + 1 >= len(self.text):
            raise CommandError(
                "the training command ends in a backslash", hint="remove it, or give what should follow it"
            )
        self._add(parts, Quote.NONE, False, self.at + 2, self.text[self.at + 1].strip("\n"))

    def _read_dollar(self, quote: Quote, parts: list[Part]) -> None:
        text, start = self.text, self.at
        if text[start] == "`":
            self._add(parts, quote, True, self._after_backquote(start))
        elif text[start + 1 : start + 2] in ("(", "{", "["):
            self._add(parts, quote, True, self._closing(start + 1, quote))
        elif quote is Quote.NONE and text.startswith("'", start + 1) and self.is_posix:
            self._add(parts, quote, True, start + 1)
        elif quote is Quote.NONE and text.startswith("'", start + 1):
            self._read_ansi(parts)
        elif quote is Quote.NONE and text.startswith('"', start + 1):
            self.at += 1
            self._read_double(parts)
        else:
            match = _PARAMETER.match(text, start)
            # A name may follow on the next line: $\<newline>name.
            expands = match is not None or text.startswith("\\\n", start + 1)
            self._add(parts, quote, expands, match.end() if match else start + 1)

    def _read_ansi(self, parts: list[Part]) -> None:
        opening = self.at
        self.at += 2
        self._add(parts, Quote.ANSI, False, self.at)
        while not self.text.startswith("'", self.at):
            if match := _IN_ANSI.match(self.text, self.at):
                self._add(parts, Quote.ANSI, False, match.end())
            elif escape := _ANSI_ESCAPE.match(self.text, self.at):
                value = _ansi_value(escape.group()[1:])
                self._add(parts, Quote.ANSI, value is None, escape.end(), value)
            else:
                raise self._unclosed(opening)
        self.at += 1

    def _closing(self, opening: int, quote: Quote = Quote.NONE) -> int:
        """Return the offset after the bracket that closes the one at `opening`."""
        text, at = self.text, opening + 1
        closers = [_CLOSERS[text[opening]]]
        while at < len(text):
            char = text[at]
            if char == closers[-1]:
                closers.pop()
                if not closers:
                    return at + 1
            elif char == "(" and (closers[-1] == ")" or text[at - 1] == "$"):
                closers.append(")")
            elif char == "{" and text[at - 1] == "$":
                closers.append("}")
            elif closers[-1] == ")" and (comment := _COMMENT_BEHIND.match(text, at)):
                at = comment.end()
                continue
            # An apostrophe in "${name:-it's}" is only a letter to sh; bash looks for its other half.
            elif char in '\\"`' or (char == "'" and (not self.is_posix or quote is Quote.NONE or ")" in closers)):
                at = self._after_quoted(at)
                continue
            at += 1
        raise self._unclosed(opening)

    def _after_quoted(self, at: int) -> int:
        if self.text[at] == "\\":
            return at + 2
        inner = _Lexer(self.text, self.is_posix)
        inner.at = at
        inner._read_part(at, [])
        return inner.at

    def _after_backquote(self, opening: int) -> int:
        at = opening + 1
        while at < len(self.text) and self.text[at] != "`":
            at += 2 if self.text[at] == "\\" else 1
        if at >= len(self.text):
            raise self._unclosed(opening)
        return at + 1

    def _unclosed(self, at: int) -> CommandError:
        # The option or variable in front of the quote shows where it is; any other word might be a secret.
        match = _NAME_BEFORE.search(self.text, max(0, at - 100), at)
        before = " ".join(f"{match[0] if match else ''}{self.text[at]}".split())
        problem = "every quote and bracket of the training command must be closed"
        return CommandError(f"{problem}, but the one at character {at + 1} is not: {before}")


def _ansi_value(escape: str) -> str | None:
    """Return the character of an escape in `$'..'`, or None for a byte or control that is left to the shell."""
    if escape[0] in "xuU01234567":
        code = int(escape, 8) if escape[0].isdecimal() else int(escape[1:] or "0", 16)
        is_letter = escape[0] in "uU" or code < 0x80
        return chr(code) if is_letter and 0 < code < 0x110000 and len(escape) > (escape[0] in "xuU") else None
    if escape[0] == "c":
        return None
    return _ANSI_NAMED.get(escape, f"\\{escape}")


def _joined(start: int, end: int, parts: tuple[Part, ...]) -> Word:
    value, static, brace = "", -1, -1
    for part in parts:
        if part.dynamic and static < 0:
            static = len(value)
        if part.quote is Quote.NONE and part.end - part.start == len(part.value):
            # The shell turns an unquoted {a,b} or {1..4} into several words; {tp} it leaves alone.
            brace = len(value) + part.value.find("{") if brace < 0 and "{" in part.value else brace
            if brace >= 0 and static < 0 and _BRACE_LIST.search(part.value, max(0, brace - len(value))):
                static = brace
        value += part.value
    return Word(start, end, value, len(value) if static < 0 else static, parts)


def names(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


KEYWORDS = names("! { } time")
"""Words that may stand in front of a command and leave it a simple one."""

CONTROL_FLOW = names("for while until if then elif else fi do done case esac select function coproc")

FOLDER_CHANGES = names("cd pushd popd")

BUILTINS = CONTROL_FLOW | names(
    """
    . : [ [[ alias bg bind break builtin cd command compgen complete continue declare dirs disown enable eval exec exit
    export fc fg getopts hash help history jobs let local logout mapfile popd pushd read readarray readonly return set
    shift shopt source suspend test times trap type typeset ulimit umask unalias unset wait
    """
)
"""Programs that only a shell can run."""

TRIVIAL = FOLDER_CHANGES | names(
    """
    . : [ [[ alias awk base64 basename bunzip2 bzcat bzip2 cat chmod clear column comm cp curl cut date dd declare df
    dirname du echo exit export false fold free getopts git grep gunzip gzip hash head hostname iconv id join jq kill ln
    local logger ls lscpu md5sum mkdir mktemp ml module mv nl nproc numfmt nvidia-smi od openssl paste pip pip3 pkill
    printenv printf ps pv pwd read readlink readonly realpath return rev rg rm rmdir rocm-smi rsync sed seq set
    sha256sum shift shopt shuf sleep sort source spack split stat strings sync tac tail tar tee test touch tr trap true
    ts type typeset ulimit umask uname uniq unset unxz unzip unzstd wait wc wget which whoami xz xzcat yes yq zcat
    zgrep zstd zstdcat
    """
)
"""Programs that prepare, clean up or show something, and never train."""

TRIVIAL_ALONE = names("conda mamba micromamba exec env time command")
"""Programs that are trivial only without arguments, such as an `exec` that redirects the rest of the script."""
