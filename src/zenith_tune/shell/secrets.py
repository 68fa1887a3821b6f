"""Secrets: finds the tokens, keys and passwords that a command holds, and masks them wherever they are written."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from zenith_tune.errors import CommandError
from zenith_tune.shell.lexer import Operator, Quote, Redirection, Word
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

_SECRET_VARIABLE = re.compile("TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_INHERITED = re.compile(r"(?![/~.])(?=.*[0-9])(?=.*[A-Za-z])\S{8,}")
"""No path and no plain word: those stand in commands and logs for other reasons, too."""


def mask_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which values of secret-sounding names, and secrets inside others, are masked.

    >>> mask_environment({"HF_TOKEN": "abc", "HOME": "/root"})
    {'HF_TOKEN': '***', 'HOME': '/root'}
    """
    return {
        name: MASK
        if _SECRET_VARIABLE.search(name) or marks_secret(name)
        else mask(value, [*_if_secret(name, [value]), *find_secrets(value)])
        for name, value in env.items()
    }


def secrets_of_environment(env: Mapping[str, str]) -> list[str]:
    """Return the values of variables with secret names, which a trial inherits and may print.

    >>> secrets_of_environment({"HF_TOKEN": "a1b2c3d4", "DB_PASSWORD": "password", "SSH_KEY": "~/.ssh/id1"})
    ['a1b2c3d4']
    """
    inherited = ((name, value) for name, value in env.items() if _INHERITED.fullmatch(value))
    return list(dict.fromkeys(secret for name, value in inherited for secret in _if_secret(name, [value])))


def find_secrets(command_text: str) -> list[str]:
    """Return the secret values that a command holds, in the order found.

    >>> find_secrets("WANDB_API_KEY=abc123 python train.py --hub_token=xyz789 --eos-token '</s>'")
    ['abc123', 'xyz789']
    """
    # Quoted pairs count wherever they stand: quotes that are nested the wrong way hide them from the shell's words.
    quoted = [(match[1], match[2] or match[3]) for match in _PAIR.finditer(command_text)]
    by_name = (secret for name, value in quoted if value for secret in _if_secret(name, [value]))
    return list(dict.fromkeys([*_in_shell_text(command_text), *by_name, *shaped_secrets(command_text)]))


_OPTION = re.compile(r"--?([A-Za-z][\w.-]*)(=)?")
_NAMED = re.compile(r"(?:--?|[+~]{0,2})([A-Za-z_][\w.-]*)=")
_ASSIGNED = re.compile(r"[+~]{0,2}([A-Za-z_][\w.-]*)=")
# Name and value within a word or a line: `ALL,HF_TOKEN=x`, `{api_key: x}`, `?key=x&`, `os.environ['HF_TOKEN'] = 'x'`,
# `login(token='x')`, `"api_key": "x"`, `${HF_TOKEN:-x}`, and -eHF_TOKEN=x.
_PAIR = re.compile(
    r"""(?:(?<![\w.-])|^-[A-Za-z]|--)([A-Za-z_][\w.-]*)(?:["']\]?)?\s*(?::[-=]|[:=](?!//))\s*"""
    # Only looked at, because it may be a pair itself: `--env=HF_TOKEN=x`.
    r"""(?="([^"]+)"|'([^']+)'|([^\s"',;{}](?:[^\s,;{}]*[^\s"'\\,;&|(){}])?))"""
)
_HEADER = re.compile(r"([A-Za-z][\w-]*):\s*(.+)", re.DOTALL)
_LOOSE_OPTION = re.compile(r"""--([\w.-]+)\s+["']?([^\s"']+)""")
_ASSIGNERS = frozenset(("-genv", "-env", "--setenv", "setenv"))
"""Options that are followed by the name of a variable, and then by its value."""
_ACCOUNT = re.compile(r"(?:-u|-U|--user|--proxy-user)=?(.*)", re.DOTALL)
_TAKES_PASSWORD = re.compile(r"sshpass|mysql\w*|mariadb\w*|login")
"""Programs whose option -p is a password."""
_NEAR = 4
"""How many words before an option may name the program that it is for."""
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_NOT_A_SECRET = frozenset(
    (
        *("true", "false", "yes", "no", "on", "off", "none", "null", "auto", "default"),
        *("basic", "bearer", "digest", "kerberos", "ldap", "oauth", "oauth2", "token"),
    )
)
_USER_AND_SECRET = re.compile(r"[^:\s/]+:(?!//)(\S+)")
_MIN_LITERAL_CHARS = 6


def _in_shell_text(text: str) -> Iterator[str]:
    """Yield the values of options and assignments with secret names, also in shell texts within words."""
    try:
        tokens = ParsedCommand.of(text).tokens
    except (CommandError, RecursionError):
        yield from _in_loose_text(text)
        return
    words = [token for token in tokens if isinstance(token, Word)]
    for index, word in enumerate(words):
        following = words[index + 1] if index + 1 < len(words) else None
        for secret in _in_word(words[max(0, index - _NEAR) : index], word, following):
            yield secret
            # As in `Zq8"vT2"` or `Zq\8`, which is no form of the value.
            for each in filter(None, (word, following)):
                if secret in each.value and secret not in (raw := text[each.start : each.end]):
                    yield raw[raw.find("=") + 1 :] if each.value != secret else raw
    yield from _in_variables(words)
    end = 0
    for token in tokens:
        if isinstance(token, Redirection):  # a here-string
            yield from _in_word((), token.target, None)
        # Between the tokens there are blanks, or the body of a here-document.
        yield from _in_loose_text(text[end : token.start])
        end = token.start if isinstance(token, Operator) and token.text == "#" else token.end
    yield from _in_loose_text(text[end:])


def _in_word(before: Sequence[Word], word: Word, following: Word | None) -> Iterator[str]:
    value, option, name = word.value, _OPTION.match(word.value), _assigned_name(word)
    if name:
        yield from _if_secret(name[1], _literals(word, name.end()))
    elif option and option[2]:
        yield from _if_secret(option[1], _literals(word, option.end()))
    elif option and option.end() == len(value) and following and not following.value.startswith("--"):
        yield from _if_secret(option[1], _literals(following, 0))
    elif header := _HEADER.fullmatch(value):
        yield from _if_secret(header[1], [header[2]])
    elif before and following and before[-1].value in _ASSIGNERS:
        yield from _if_secret(value, _literals(following, 0))
    yield from _in_pairs(value)
    yield from _in_flags(before, value, following.value if following else "")
    # A shell text of its own, as behind `bash -c`.
    start = value.find("=") + 1 if name or option else 0
    if re.search(r"\s", value[start:]) and word.end - word.start > len(value):
        yield from _in_shell_text(value[start:])
    for part in word.parts:
        if part.dynamic and part.value.startswith(("$(", "`", "<(", ">(", "(")):
            yield from _in_shell_text(part.value[part.value.find("(") + 1 : -1])


def _in_pairs(text: str) -> Iterator[str]:
    for match in _PAIR.finditer(text):
        value = match[2] or match[3] or match[4]
        yield from _if_secret(match[1], [value, value.partition("&")[0]])  # the rest may be another pair of a URL


def _in_loose_text(text: str) -> Iterator[str]:
    if text.strip(" \t\n\\"):
        yield from _in_pairs(text)
        for match in _LOOSE_OPTION.finditer(text):
            yield from _if_secret(match[1], [match[2]])


def _in_variables(words: Sequence[Word]) -> Iterator[str]:
    """Yield what variables are set to, whatever their names, whose value is then given as a secret: `--token $MINE`."""
    given = [(option[1], after.value) for word, after in pairwise(words) if (option := _OPTION.fullmatch(word.value))]
    given += [(match[1], word.value[match.end() :]) for word in words if (match := _NAMED.match(word.value))]
    used = [match for name, value in given if (match := _VARIABLE.fullmatch(value)) and marks_secret(name)]
    names = {match[1] or match[2] for match in used}
    for word in words:
        name = _assigned_name(word)
        if name and name[1] in names:
            yield from filter(_is_written_out, _literals(word, name.end()))


def _in_flags(before: Sequence[Word], value: str, following: str) -> Iterator[str]:
    """Yield the passwords of `curl -u me:x` and `sshpass -p x`, also where option and value touch."""
    if account := _ACCOUNT.fullmatch(value):
        parts = _USER_AND_SECRET.fullmatch(account[1] or following)
        # 1000:1000 are numbers of user and group.
        if parts and not parts[1].isdecimal() and _is_written_out(parts[1]):
            yield parts[1]
    if value.startswith("-p") and any(_TAKES_PASSWORD.fullmatch(each.value) for each in before):
        yield from filter(_is_written_out, [value[2:] or following])


def _assigned_name(word: Word) -> re.Match[str] | None:
    """Return the name of an assignment; a quoted one with blanks is a shell text that begins with an assignment."""
    is_text = word.parts[0].quote is not Quote.NONE and re.search(r"\s", word.value)
    return None if is_text else _ASSIGNED.match(word.value)


def _literals(word: Word, start: int) -> list[str]:
    """Return what is written out of a word's value from `start` on."""
    if word.is_static:
        return [word.value[start:]]
    pieces, position = [], 0
    for part in word.parts:
        if not part.dynamic:
            pieces.append(part.value[max(0, start - position) :])
        position += len(part.value)
    return [piece for piece in pieces if len(piece) >= _MIN_LITERAL_CHARS]


def _if_secret(name: str, values: Iterable[str]) -> Iterator[str]:
    for value in filter(_is_written_out, values):
        if name.lower() == "pwd" and value[0] in "/~.":  # a folder
            continue
        if marks_secret(name, value):
            yield value
        account = _USER_AND_SECRET.fullmatch(value) if re.search(r"(?i:auth|login)$", name) else None
        if account and _is_written_out(account[1]):
            yield account[1]


def _is_written_out(value: str) -> bool:
    is_real = len(value) >= MIN_SECRET_CHARS and value.lower() not in _NOT_A_SECRET and value.strip("*") != ""
    return is_real and not value.startswith("$") and not is_placeholder(value)


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
    return ["".join(map(_written, secret)) for secret in in_order]


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
