"""Secrets: finds the tokens, keys and passwords that a command holds, and masks them wherever they are written."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, quote_plus

from zenith_tune.errors import CommandError
from zenith_tune.shell.lexer import Operator, Quote, Redirection, Word
from zenith_tune.shell.parsed_command import ParsedCommand
from zenith_tune.shell.secret_names import (
    MASK,
    MIN_SECRET_CHARS,
    WELL_KNOWN,
    Secrecy,
    is_placeholder,
    secrecy_of,
    shaped_secrets,
)
from zenith_tune.study.files import open_regular

__all__ = ["MASK", "find_secrets", "mask", "mask_environment", "mask_file", "secrets_of_environment"]

_SECRET_VARIABLE = re.compile("TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_OPTION = re.compile(r"--?([A-Za-z][\w.-]*)(=)?")
_PAIR = re.compile(r"[+~]{0,2}([A-Za-z_][\w.-]*)=")
_NAMED = re.compile(r"(?:--?|[+~]{0,2})([A-Za-z_][\w.-]*)=")
# One of several settings in a word: `ALL,HF_TOKEN=x`, `Server=h;Password=x`, `{api_key: x}`, `--env=HF_TOKEN=x`.
_SETTING = re.compile(r"(?:[,;{=]|^-[A-Za-z])\s*([A-Za-z_][\w.-]*)(?:=|:\s*(?!/))([^,;{}\s]+)")
_ASSIGNERS = frozenset(("-genv", "-env", "--setenv", "setenv"))
"""What is followed by the name of a variable, and then by its value."""
_ACCOUNT = re.compile(r"(?:-u|-U|--user|--proxy-user)=?(.*)", re.DOTALL)
_TAKES_PASSWORD = re.compile(r"sshpass|mysql\w*|mariadb\w*|login")
"""Whose option -p is a password."""
_NEAR = 4
"""How many words before an option may name the program that it is for."""
_DEFAULT = re.compile(r"\$\{(\w+):?[-=]([^}]*)\}")
# As in JSON, and in Python: `os.environ['HF_TOKEN'] = 'x'`, `login(token='x')`.
_QUOTED_PAIR = re.compile(r"""(?<![\w.-])([A-Za-z_][\w.-]*)(?:\\?["']\]?)?\s*[:=]\s*\\?["']([^"'\\]+)""")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_QUERY = re.compile(r"[?&]([A-Za-z_][\w.-]*)=([^&\s'\"]+)")
_HEADER = re.compile(r"([A-Za-z][\w-]*):\s*(\S+)")
_LOOSE = re.compile(r"""(?:--([\w.-]+)(?:=|\s+)|([A-Za-z_][\w.-]*)["']?\s*[:=]\s*)("[^"]*"|'[^']*'|[^\s"',;&|)}\]]+)""")
_NOT_A_SECRET = frozenset(("true", "false", "yes", "no", "on", "off", "none", "null", "auto", "default"))
_KINDS_OF_AUTH = frozenset(("basic", "bearer", "digest", "kerberos", "ldap", "oauth", "oauth2", "token"))
_USER_AND_SECRET = re.compile(r"[^:\s/]+:(?!//)(\S+)")
_FOLDER = re.compile(r"[/~.].*")
_RANDOM = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])\S*(?:[A-Za-z0-9]{16,}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\S*")
_MIN_LITERAL_CHARS = 6
_INHERITED = re.compile(r"(?![/~.])(?=.*[0-9])(?=.*[A-Za-z])\S{8,}")
"""No path and no plain word: those stand in commands and logs for other reasons, too."""
_CHUNK_BYTES = 1 << 20
_LONGEST_TOKEN = 4096
"""Of a longer token the rest may stay where a file is read in pieces."""
_NO_REGULAR_FILE = frozenset(
    (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.EINVAL, errno.ENXIO, errno.ENODEV)
)


def mask_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which values of secret-sounding names, and secrets inside others, are masked.

    >>> mask_environment({"HF_TOKEN": "abc", "HOME": "/root"})
    {'HF_TOKEN': '***', 'HOME': '/root'}
    """
    return {name: _masked_variable(name, value) for name, value in env.items()}


def _masked_variable(name: str, value: str) -> str:
    if _SECRET_VARIABLE.search(name) or secrecy_of(name) is Secrecy.SECRET:
        return MASK
    return mask(value, [*_if_secret(name, [value]), *find_secrets(value)])


def secrets_of_environment(env: Mapping[str, str]) -> list[str]:
    """Return the values of variables with secret names, which a trial inherits and may print.

    >>> secrets_of_environment({"HF_TOKEN": "a1b2c3d4", "DB_PASSWORD": "password", "SSH_KEY": "~/.ssh/id1"})
    ['a1b2c3d4']
    """
    found = (
        secret for name, value in env.items() if _INHERITED.fullmatch(value) for secret in _if_secret(name, [value])
    )
    return list(dict.fromkeys(found))


def find_secrets(command_text: str) -> list[str]:
    """Return the secret values that a command holds, in the order found.

    >>> find_secrets("WANDB_API_KEY=abc123 python train.py --hub_token=xyz789 --eos-token '</s>'")
    ['abc123', 'xyz789']
    """
    return list(dict.fromkeys([*_in_shell_text(command_text), *_by_shape(command_text)]))


def _by_shape(text: str) -> Iterator[str]:
    """Yield what looks like a secret wherever it stands."""
    yield from shaped_secrets(text)
    for pattern in (_DEFAULT, _QUOTED_PAIR, _QUERY):
        for match in pattern.finditer(text):
            yield from _if_secret(match[1], [match[2]])


def _in_shell_text(text: str) -> Iterator[str]:
    """Yield the values of options and assignments whose names tell, also in shell texts within words."""
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
            yield from _as_written(secret, text, (word, following))
    yield from _in_variables(words)
    for token in tokens:
        if isinstance(token, Redirection):  # a here-string
            yield from _in_word((), token.target, None)
    end = 0
    for token in tokens:
        # Between the tokens there are blanks, or the body of a here-document.
        yield from _in_loose_text(text[end : token.start])
        end = token.start if isinstance(token, Operator) and token.text == "#" else token.end
    yield from _in_loose_text(text[end:])


def _in_variables(words: Sequence[Word]) -> Iterator[str]:
    """Yield what variables are set to, whatever their names, whose value is then given as a secret: `--token $MINE`."""
    given = [(option[1], after.value) for word, after in pairwise(words) if (option := _OPTION.fullmatch(word.value))]
    given += [(match[1], word.value[match.end() :]) for word in words if (match := _NAMED.match(word.value))]
    used = [(name, match) for name, value in given if (match := _VARIABLE.fullmatch(value))]
    names = {match[1] or match[2] for name, match in used if secrecy_of(name) is Secrecy.SECRET}
    for word in words:
        pair = _pair(word)
        if pair and pair[1] in names:
            yield from filter(_is_written_out, _literals(word, pair.end()))


def _as_written(secret: str, text: str, words: Iterable[Word | None]) -> Iterator[str]:
    """Yield how a secret stands in the command where that is no form of it, as in `Zq8"vT2"` or `Zq\\8`."""
    for word in words:
        if word is not None and secret in word.value and secret not in (raw := text[word.start : word.end]):
            yield raw[raw.find("=") + 1 :] if word.value != secret else raw


def _in_word(before: Sequence[Word], word: Word, following: Word | None) -> Iterator[str]:
    option = _OPTION.match(word.value)
    if pair := _pair(word):
        yield from _if_secret(pair[1], _literals(word, pair.end()))
    elif option and option[2]:
        yield from _if_secret(option[1], _literals(word, option.end()))
    elif option and option.end() == len(word.value) and following and not following.value.startswith("--"):
        yield from _if_secret(option[1], _literals(following, 0))
    elif header := _HEADER.fullmatch(word.value):
        yield from _if_secret(header[1], [header[2]])
    elif before and following and before[-1].value in _ASSIGNERS:
        yield from _if_secret(word.value, _literals(following, 0))
    for setting in _SETTING.finditer(word.value):
        yield from _if_secret(setting[1], [setting[2]])
    yield from _in_flags(before, word, following)
    yield from _nested(word)


def _in_flags(before: Sequence[Word], word: Word, following: Word | None) -> Iterator[str]:
    """Yield the passwords of `curl -u me:x` and `sshpass -p x`, also where option and value touch."""
    if account := _ACCOUNT.fullmatch(word.value):
        given = account[1] or (following.value if following else "")
        parts = _USER_AND_SECRET.fullmatch(given)
        if parts and not parts[1].isdecimal() and _is_written_out(parts[1]):  # 1000:1000 are numbers of user and group
            yield parts[1]
    if word.value.startswith("-p") and any(_TAKES_PASSWORD.fullmatch(each.value) for each in before):
        given = word.value[2:] or (following.value if following else "")
        if _is_written_out(given):
            yield given


def _pair(word: Word) -> re.Match[str] | None:
    """Return the name of an assignment; a quoted one with blanks is a shell text that begins with an assignment."""
    is_text = word.parts[0].quote is not Quote.NONE and re.search(r"\s", word.value)
    return None if is_text else _PAIR.match(word.value)


def _nested(word: Word) -> Iterator[str]:
    start = word.value.find("=") + 1 if _pair(word) or _OPTION.match(word.value) else 0
    if re.search(r"\s", word.value[start:]) and word.end - word.start > len(word.value):
        yield from _in_shell_text(word.value[start:])
    for part in word.parts:
        if part.dynamic and part.value.startswith(("$(", "`", "<(", ">(", "(")):
            yield from _in_shell_text(part.value[part.value.find("(") + 1 : -1])


def _in_loose_text(text: str) -> Iterator[str]:
    if not text.strip(" \t\n\\"):
        return
    for match in _LOOSE.finditer(text):
        yield from _if_secret(match[1] or match[2], [match[3].strip("\"'")])


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
    secrecy = secrecy_of(name)
    # Variables are written in capitals; one that is called a token or key is taken at its word.
    is_reported = secrecy is Secrecy.SECRET or (secrecy is Secrecy.UNSURE and re.search(r"(TOKEN|KEY)$", name))
    for value in values:
        if not _is_written_out(value) or (name.lower() == "pwd" and _FOLDER.fullmatch(value)):
            continue
        if is_reported or (secrecy is Secrecy.UNSURE and _RANDOM.fullmatch(value)):
            yield value
        account = _USER_AND_SECRET.fullmatch(value) if re.search(r"(?i:auth|login)$", name) else None
        if account and _is_written_out(account[1]):
            yield account[1]


def _is_written_out(value: str) -> bool:
    is_real = len(value) >= MIN_SECRET_CHARS and value.lower() not in _NOT_A_SECRET | _KINDS_OF_AUTH
    return is_real and not value.startswith("$") and not is_placeholder(value) and value.strip("*") != ""


def mask(text: str, secrets: Sequence[str]) -> str:
    """Return a text in which every secret is `***`, also where it is written with escapes, and every well-known token.

    >>> mask("python train.py --hf-token hf_abc", ["hf_abc"])
    'python train.py --hf-token ***'
    """
    forms = _forms(secrets)
    # A replacement can bring the ends of a secret together, where that holds asterisks itself.
    while any(form in text for form in forms):
        for form in forms:
            text = text.replace(form, MASK)
    return WELL_KNOWN.sub(MASK, text)


def _forms(secrets: Iterable[str]) -> list[str]:
    """Return the secrets as they are, and as shells, JSON, Python and URLs write them, the longest first."""
    forms: set[str] = set()
    for secret in secrets:
        if not secret.strip("*"):
            continue
        bare = re.sub(r"^'(.*)'$", r"\1", shlex.quote(secret), flags=re.DOTALL)
        written = (secret, bare, secret.replace("'", "'\\''"), re.sub(r'([\\"$`])', r"\\\1", secret))
        forms.update(written)
        forms.update(json.dumps(form, ensure_ascii=ascii)[1:-1] for form in written for ascii in (True, False))
        forms.update(escaped for form in written for escaped in _in_python(form))
        forms.update(_in_urls(secret))
    return sorted(forms, key=len, reverse=True)


def _in_python(text: str) -> Iterator[str]:
    """Yield a text as Python's repr and ascii show it, also as bytes, within either kind of quotes."""
    in_bytes = "".join(repr(bytes([byte]))[2:-1] for byte in _encoded(text))
    for escaped in ("".join(repr(char)[1:-1] for char in text), "".join(ascii(char)[1:-1] for char in text), in_bytes):
        yield escaped
        yield escaped.replace("'", "\\'")


def _in_urls(secret: str) -> Iterator[str]:
    data = _encoded(secret)
    for encoded in (quote(data), quote(data, safe=""), quote_plus(data), quote(data, safe="!$&'()*+,;=:@/")):
        yield encoded
        yield re.sub("%..", lambda match: match[0].lower(), encoded)


def _encoded(text: str) -> bytes:
    """Return the bytes that a program would write, also of a word that is no valid text."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode(errors="surrogatepass")


def mask_file(path: Path, secrets: Sequence[str]) -> int:
    """Overwrite every secret in a file with as many asterisks, whatever the file's size, and return how many.

    What is not there, or is no regular file, has none; what is written while this reads is left for the next time.
    """
    try:
        file = open_regular(path, writable=True)
    except OSError as error:
        if error.errno in _NO_REGULAR_FILE:
            return 0
        raise
    with file:
        return _mask_open_file(file, [_encoded(form) for form in _forms(secrets)])


def _mask_open_file(file: BinaryIO, forms: Sequence[bytes]) -> int:
    pattern = re.compile(b"|".join([*map(re.escape, forms), WELL_KNOWN.pattern.encode()]), re.ASCII)
    longest = max(map(len, (*forms, b" " * _LONGEST_TOKEN)))
    left_bytes = os.fstat(file.fileno()).st_size
    count = base = 0
    data = b""
    while True:
        chunk = file.read(min(_CHUNK_BYTES, left_bytes))
        left_bytes -= len(chunk)
        data += chunk
        # What begins nearer to the end than the longest secret may continue in the next chunk.
        settled = len(data) - longest + 1 if chunk else len(data)
        for match in pattern.finditer(data):
            if match.start() >= settled:
                break
            file.seek(base + match.start())
            file.write(b"*" * len(match[0]))
            settled = max(settled, match.end())
            count += 1
        if not chunk:
            return count
        settled = max(settled, 0)
        base, data = base + settled, data[settled:]
        file.seek(base + len(data))
