"""Secrets: finds the tokens, keys and passwords that a command holds, and masks them wherever they are written.

A secret is what a name that marks one is set to, as bash reads it, or what looks like one (`secret_names`).
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from zenith_tune.errors import CommandError
from zenith_tune.shell.lexer import Operator, Quote, Redirection, Token, Word
from zenith_tune.shell.parsed_command import ParsedCommand
from zenith_tune.shell.secret_names import (
    MASK,
    MIN_SECRET_CHARS,
    WELL_KNOWN,
    is_placeholder,
    marks_secret,
    shaped_secrets,
)
from zenith_tune.study.files import open_regular

__all__ = ["MASK", "find_secrets", "mask", "mask_environment", "mask_file", "secrets_of_environment"]

_MIN_INHERITED_CHARS = 6
"""What is shorter stands in logs for other reasons, too."""


def mask_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which values of secret names, and secrets inside others, are masked.

    >>> mask_environment({"HF_TOKEN": "abc", "HOME": "/root"})
    {'HF_TOKEN': '***', 'HOME': '/root'}
    """
    return {name: mask(value, _of_variable(name, value)) for name, value in env.items()}


def secrets_of_environment(env: Mapping[str, str]) -> list[str]:
    """Return the secrets among the variables that a trial inherits and may print.

    >>> secrets_of_environment({"HF_TOKEN": "correcthorse", "DB_URL": "db://me:hunter2@h/x", "SSH_KEY": "~/.ssh/id1"})
    ['correcthorse', 'hunter2']
    """
    found = (each for name, value in env.items() for each in _of_variable(name, value))
    return list(dict.fromkeys(each for each in found if len(each) >= _MIN_INHERITED_CHARS))


def _of_variable(name: str, value: str) -> list[str]:
    return [*_if_secret(name, [value]), *find_secrets(value)]


def find_secrets(command_text: str) -> list[str]:
    """Return the secret values that a command holds, in the order found.

    >>> find_secrets("WANDB_API_KEY=abc123 python train.py --hub_token=xyz789 --eos-token '</s>'")
    ['abc123', 'xyz789']
    """
    # Quoted pairs count wherever they stand: quotes that are nested the wrong way hide them from the shell's words.
    quoted = ((match[1], match[2] or match[3]) for match in _PAIR.finditer(command_text))
    by_name = (secret for name, value in quoted if value for secret in _if_secret(name, [value]))
    return list(dict.fromkeys([*_in_shell_text(command_text), *by_name, *shaped_secrets(command_text)]))


_NAME = r"[A-Za-z_][\w.-]*"
_SET = re.compile(rf"(?:--?|[+~]{{0,2}})({_NAME}?)\+?=")
"""A word that sets a name to what follows."""
_NAMES = re.compile(rf"--?({_NAME})|(?:[\w.-]+\.|//\S+:)?(\w*[A-Z_]\w*|(?<=\.)[\w-]+)")
"""A word that names what the next is: an option, or as in `setenv HF_TOKEN x` and `config set global.password x`."""
_SETTING = re.compile(r"([\w.:/-]+)()")
"""A word that may name what the next is, behind one that sets something: `poetry config pypi-token.pypi x`."""
_SETTERS = frozenset(("config", "configure", "modify", "set", "--arg", "--set"))
# Name and value within a word or a line: `ALL,HF_TOKEN=x`, `{api_key: x}`, `?key=x&`, `os.environ['HF_TOKEN'] = 'x'`,
# `login(token='x')`, `putenv('HF_TOKEN', 'x')`, `"api_key": "x"`, `${HF_TOKEN:-x}`, and -eHF_TOKEN=x.
_PAIR = re.compile(
    rf"""(?:(?<![\w.-])|^-[A-Za-z]|--)({_NAME})(?:["']\]?)?\s*(?::[-=]|[:=](?!//)|(?<=["']),)\s*"""
    # Only looked at, because it may be a pair itself: `--env=HF_TOKEN=x`.
    r"""(?="([^"]+)"|'([^']+)'|([^\s"',;{}](?:[^\s,;{}]*[^\s"'\\,;&|(){}])?))"""
)
_HEADER = re.compile(r"([A-Za-z][\w-]*):\s*(.+)", re.DOTALL)
_LOOSE_OPTION = re.compile(r"""--([\w.-]+)\s+["']?([^\s"']+)""")
_BLANK = re.compile(r"\s")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_DEFAULT = re.compile(r"\$\{\w+:?[-=+](.*)\}", re.DOTALL)
_ECHO = re.compile(r"(?:[$<]\(|`)\s*(?:echo|printf)\s+(.*?)\s*[)`]", re.DOTALL)
_NOT_A_SECRET = frozenset(
    (
        *("true", "false", "yes", "no", "on", "off", "none", "null", "auto", "default", "password", "secret", "%s"),
        *("basic", "bearer", "digest", "kerberos", "ldap", "oauth", "oauth2", "token"),
    )
)
_USER_AND_SECRET = re.compile(r"[^:\s/]+:(?!//)(\S+)")
_PATH = re.compile(
    r"(?:~|\.{1,2})?/(?![^/]*[A-Z0-9+=][^/]{15})[^\s+=]*"
    r"|[\w.-]+(?:/[\w.-]+)*\.(?:pem|key|crt|json|ya?ml|toml|txt|cfg|ini|env)|<\|?\w+\|?>"
)
"""A secret in a file of its own is none in the command, nor is a token such as <|user|>; base64 may begin with /."""
_MIN_LITERAL_CHARS = 6


def _in_shell_text(text: str) -> Iterator[str]:
    """Yield what secret names are set to, also in shell texts within words."""
    try:
        tokens = ParsedCommand.of(text).tokens
    except (CommandError, RecursionError):
        yield from _in_loose_text(text)
        return
    end = 0
    for token in tokens:
        # Between the tokens there are blanks, or the body of a here-document.
        yield from _in_loose_text(text[end : token.start])
        end = token.start if isinstance(token, Operator) and token.text == "#" else token.end
        if isinstance(token, Word | Redirection):  # of a here-string
            yield from _in_word(token if isinstance(token, Word) else token.target)
    yield from _in_loose_text(text[end:])
    values = list(_values(tokens))
    given = [(name, _VARIABLE.fullmatch(word.value, start)) for name, word, start in values]
    marked, size = {name for name, *_ in values if marks_secret(name)}, -1
    while len(marked) > size:  # as in `A=x; B=$A; python train.py --token $B`
        size = len(marked)
        marked |= {match[1] or match[2] for name, match in given if match and name in marked}
    for name, word, start in values:
        for secret in _if_secret(name, _literals(word, start), is_marked=name in marked):
            yield secret
            # As in `Zq8"vT2"` or `Zq\8`, which is no form of the value.
            if secret in word.value and secret not in (raw := text[word.start : word.end]):
                yield raw if word.value == secret else raw[raw.find("=") + 1 :]


def _values(tokens: Sequence[Token]) -> Iterator[tuple[str, Word, int]]:
    """Yield the names that are set to something, the word that has it, and where in that it begins."""
    is_setting = False
    for index, word in enumerate(tokens):
        if not isinstance(word, Word):
            is_setting = False
            continue
        is_setting = is_setting or word.value in _SETTERS
        following = [each for each in tokens[index + 1 : index + 3] if isinstance(each, Word)]
        if (name := _SET.match(word.value)) and not _is_text(word):
            yield name[1], word, name.end()
        elif not following or following[0] is not tokens[index + 1]:
            continue
        elif name := (_SETTING if is_setting else _NAMES).fullmatch(word.value):
            value = following[-1 if following[0].value == "%s" else 0]  # as in `printf -v HF_TOKEN %s x`
            if not value.value.startswith("--"):
                yield name[1] or name[2], value, 0


def _is_text(word: Word) -> bool:
    """Tell whether a word is a text of its own, as behind `bash -c`, and not one that has blanks."""
    return word.parts[0].quote is not Quote.NONE and _BLANK.search(word.value) is not None


def _in_word(word: Word) -> Iterator[str]:
    value, name = word.value, None if _is_text(word) else _SET.match(word.value)
    if name is None and (header := _HEADER.fullmatch(value)):
        yield from _if_secret(header[1], [header[2]])
    yield from _in_pairs(value)
    start = name.end() if name else 0
    if _BLANK.search(value, start) and word.end - word.start > len(value):
        yield from _in_shell_text(value[start:])
    for part in word.parts:
        if part.dynamic and part.value.startswith(("$(", "`", "<(", ">(", "(")):
            yield from _in_shell_text(part.value[part.value.find("(") + 1 : -1])


def _in_pairs(text: str) -> Iterator[str]:
    for match in _PAIR.finditer(text):
        value = match[2] or match[3] or match[4]
        if not value.startswith("$"):
            yield from _if_secret(match[1], [value, value.partition("&")[0]])  # the rest may be another pair of a URL


def _in_loose_text(text: str) -> Iterator[str]:
    if text.strip(" \t\n\\"):
        yield from _in_pairs(text)
        for match in _LOOSE_OPTION.finditer(text):
            yield from _if_secret(match[1], [match[2]])


def _literals(word: Word, start: int) -> Iterator[str]:
    """Yield what is written out of a word's value from `start` on."""
    if word.is_static:
        yield word.value[start:]
        return
    position = 0
    for part in word.parts:
        if not part.dynamic:
            piece = part.value[max(0, start - position) :]
            yield from [piece] if len(piece) >= _MIN_LITERAL_CHARS else []
        elif default := _DEFAULT.fullmatch(part.value):
            yield default[1]
        elif echoed := _ECHO.fullmatch(part.value):
            yield from echoed[1].replace("'", " ").replace('"', " ").split()
        position += len(part.value)


def _if_secret(name: str, values: Iterable[str], *, is_marked: bool = False) -> Iterator[str]:
    is_marked = is_marked or marks_secret(name)
    for value in filter(_is_secret, values):
        if is_marked:
            yield value
        account = _USER_AND_SECRET.fullmatch(value) if re.search(r"(?i:auth|login)$", name) else None
        if account and _is_secret(account[1]):
            yield account[1]


def _is_secret(value: str) -> bool:
    is_word = value.lower() in _NOT_A_SECRET or value.strip("*") == "" or is_placeholder(value)
    return len(value) >= MIN_SECRET_CHARS and not is_word and _PATH.fullmatch(value) is None


def mask(text: str, secrets: Sequence[str]) -> str:
    """Return a text in which every secret is `***`, also where it is written with escapes, and every well-known token.

    >>> mask("python train.py --hf-token hf_abc", ["hf_abc"])
    'python train.py --hf-token ***'
    """
    if pattern := "|".join(_patterns(secrets)):
        # A replacement can bring the ends of a secret together, where that holds asterisks itself.
        while (masked := re.sub(pattern, MASK, text)) != text:
            text = masked
    return WELL_KNOWN.sub(MASK, text)


def _patterns(secrets: Iterable[str]) -> list[str]:
    """Return a pattern for each secret, the longest first, in which every character may be escaped in its own way."""
    in_order = sorted({secret for secret in secrets if secret.strip("*")}, key=len, reverse=True)
    # A number is masked where it is one, not where its digits are part of another.
    return [
        rf"(?<![\d.]){secret}(?!\.?\d)" if secret.isdecimal() else "".join(map(_written, secret)) for secret in in_order
    ]


def _written(char: str) -> str:
    """Return a pattern for a character as shells, JSON, Python and URLs write it, also one inside the other."""
    if char.isascii() and char.isalnum():
        return char
    if char == "'":  # as in 'it'\''s'
        return r"(?:[\\'\"]{0,5}?'[\\'\"]{0,6}?|%27)"
    in_url = "".join(f"%{byte:02x}" for byte in char.encode(errors="surrogateescape"))
    ways = [re.escape(char), f"(?i:{in_url})"]
    if (in_json := json.dumps(char)[1:-1]) != char:
        ways.append(in_json.replace("\\", r"\\{1,8}"))
    ways += [rf"\\{{1,8}}{re.escape(char)}"] if char in '"$`' else [r"\+"] if char == " " else []
    return f"(?:{'|'.join(ways)})"


_NO_REGULAR_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.EINVAL, errno.ENXIO, errno.ENODEV)


def mask_file(path: Path, secrets: Sequence[str]) -> int:
    """Overwrite every secret in a log, which is of limited size, with as many asterisks, and return how many.

    What is not there, or is no regular file, has none; what is written while this reads is left for the next time.
    """
    try:
        file = open_regular(path, writable=True)
    except OSError as error:
        if error.errno in _NO_REGULAR_FILE:
            return 0
        raise
    pattern = "|".join([*_patterns(secrets), WELL_KNOWN.pattern]).encode(errors="surrogateescape")
    with file:
        data = file.read(os.fstat(file.fileno()).st_size)
        found = list(re.finditer(pattern, data, re.ASCII))
        for match in found:
            file.seek(match.start())
            file.write(b"*" * len(match[0]))
    return len(found)
