"""Which names and shapes tell of a secret, and which names only speak of language models."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum

MASK = "***"
MIN_SECRET_CHARS = 3


class Secrecy(Enum):
    """Say what a name tells about its value."""

    SECRET = "secret"
    OPEN = "open"
    UNSURE = "unsure"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SECRET = ("secret", "secrets", "password", "passwd", "passphrase", "passcode", "credential", "credentials")
_OF_SERVICES = _names(
    """
    access account admin anthropic api app auth aws azure bearer bitbucket clearml client cohere comet dashscope deploy
    docker encryption gcp gemini gh git github gitlab google hf hub hugging huggingface jwt kaggle license login mistral
    mlflow modelscope neptune ngc npm nvidia oauth openai private push pypi refresh registry replicate session shared
    sas signing slack ssh storage swanlab telegram together vault wandb webhook
    """
)
_OF_MODELS = _names(
    """
    add added answer assistant audio batch begin blank bos cache chosen cls column context decoder dict doc document
    empty end eod eom eos eot extra feature field fim first forced frame fused gen generated gold ignore image img
    index input instruction join label lang language last loss mask max merge message min modality mm mrope name new
    next num object output pad padding patch per position prefix primary prompt query question reasoning rejected
    response rope round row sample score sep seq sort source special speech start state step stop suffix target
    text think tool total train trigger unk val value video vision vit vocab word
    """
)
# The value is then where a secret lies, or what it is like, and not the secret.
_ABOUT = _names(
    "file path dir folder name url type length len size count limit ttl header field column env var id ids index stdin"
)
_TAIL = re.compile(r"(.*?)(token|key)(s?)")
# Short words, which count only as the last of a name: bypass, author and compass are none of them.
_SHORT = re.compile(
    r"(?:db|ftp|mail|my|mysql|pg|root|smtp|ssh|user)?(?:pass|pw|pwd)|auth|authorization|cookies?|jwt|pat"
)
# A pass is also a walk through the data, a pwd the folder of a container, and --no-auth is followed by anything.
_NOT_PASSWORDS = {
    "auth": _names("disable enable no require skip use without"),
    "pass": _names("backward bwd by dry eval first forward full fwd multi n num one per second single total train two"),
    "pwd": _names("apptainer container init singularity"),
}
_VALUES = _names("str string val value")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z][a-z])")

WELL_KNOWN = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}"
    r"|glpat-[\w-]{16,}|xox[a-z]-[\w-]{8,}|A(?:KIA|SIA)[A-Z0-9]{12,}|AIza[\w-]{30,}|nvapi-[\w-]{20,}|npm_[A-Za-z0-9]{30,}"
    r"|pypi-[\w-]{30,}|dckr_pat_[\w-]{16,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,})"
)
_IN_CONTEXT = re.compile(
    r"://[^/\s:@'\"]*:([^@/\s'\"]+)@"
    r"|://([^/\s:@'\"]{16,})@"
    r"|(?i:authorization['\"]?\s*[:=]\s*['\"]?(?:bearer|basic|token)\s+([\w.~+/=-]{3,}))"
    r"|\b[Bb]earer\s+([\w.~+/=-]{6,})"
    r"|\bwandb\s+login\s+(?:--\S+\s+)*(\w{20,})"
    r"|\bmachine\s+\S+\s+login\s+\S+\s+password\s+([^\s'\"]{3,})"
    r"|hooks\.slack\.com/services/([\w/]{16,})"
    r"|\b(?:echo|printf)\s+(?:-n\s+)?['\"]?([^\s'\"|]{3,})['\"]?\s*\|[^|;&]*--(?:password|token)-stdin\b"
    r"|[?&](?i:sig|signature|x-(?:amz|goog)-(?:signature|credential|security-token))=([^&\s'\"]{3,})"
)
_PLACEHOLDER = re.compile(r"\{\w+\}")
_OPTION_NAME = re.compile(r"--?[A-Za-z][\w.-]*")
# What follows an equals sign, a header's colon, a default of the shell, or an option within the same word.
_GIVEN = re.compile(r"(=|:\s|:[-+?]|(?:^|[\s(`])--?[A-Za-z][\w.-]*\s)\s*\S.{2,}", re.DOTALL)
_TOUCHING = re.compile(r"\A(-[A-Za-z]).{3,}", re.DOTALL)


def secrecy_of(name: str) -> Secrecy:
    """Tell from an option's or variable's name whether its value is a secret.

    >>> [secrecy_of(name).value for name in ("--hf-token", "WANDB_API_KEY", "--pad-token-id", "--tokenizer-model")]
    ['secret', 'secret', 'open', 'open']
    """
    apart = _HUMP.sub("_", name)
    words = [word for word in re.split(r"[^a-z0-9]+", apart.lower()) if word]
    if _is_spelt_out(words):
        return Secrecy.SECRET
    if not words or words[-1] in _ABOUT or name == "PWD":
        return Secrecy.OPEN
    if any(word.endswith(_SECRET) for word in words):
        return Secrecy.SECRET
    if _SHORT.fullmatch(words[-1]):
        return Secrecy.OPEN if _NOT_PASSWORDS.get(words[-1], frozenset()).intersection(words) else Secrecy.SECRET
    tail = _TAIL.fullmatch(words[-1])
    if tail is None:
        return Secrecy.UNSURE if {"token", "key"}.intersection(words) else Secrecy.OPEN
    return _of_tail([*words[:-1], *filter(None, [tail[1]])], tail[2], is_plural=bool(tail[3]))


def _of_tail(qualifiers: list[str], kind: str, is_plural: bool) -> Secrecy:
    if _OF_SERVICES.intersection(qualifiers):
        return Secrecy.SECRET
    if is_plural or _OF_MODELS.intersection(qualifiers):
        return Secrecy.OPEN
    return Secrecy.SECRET if kind == "token" and not qualifiers else Secrecy.UNSURE


def _is_spelt_out(words: list[str]) -> bool:
    """Tell whether a secret's name continues with `id` or `value`: an `access_key_id` is as secret as the key."""
    if words[-2:] == ["secret", "id"]:
        return True
    is_key = words[-2:] == ["key", "id"] or (words[-2:-1] in (["key"], ["token"]) and words[-1] in _VALUES)
    return is_key and bool(_OF_SERVICES.intersection(words))


def shaped_secrets(text: str) -> Iterator[str]:
    """Yield what looks like a secret wherever it stands, whatever its name.

    >>> list(shaped_secrets("git clone https://me:hunter2@host/x"))
    ['hunter2']
    """
    for match in WELL_KNOWN.finditer(text):
        yield match[0]
    for match in _IN_CONTEXT.finditer(text):
        secret = match[match.lastindex or 0]
        if not secret.startswith("$") and not is_placeholder(secret):
            yield secret


def is_placeholder(text: str) -> bool:
    """Tell whether a text is a placeholder such as `{token}`."""
    return _PLACEHOLDER.fullmatch(text) is not None


def shown_words(words: Sequence[str]) -> list[str]:
    """Return a command's words as a message may show them: names are kept, what they are set to is masked.

    >>> shown_words(["env", "A=1", "HF_TOKEN=abc", "train", "--lr", "0.01", "--tp=2"])
    ['env', 'A=1', 'HF_TOKEN=***', 'train', '--lr', '***', '--tp=2']
    """
    is_value = [False, *(_OPTION_NAME.fullmatch(word) is not None for word in words)]
    return [_shown_word(word, after) for word, after in zip(words, is_value, strict=False)]


def _shown_word(word: str, is_value: bool) -> str:
    if is_value and not word.startswith("-"):
        return word if len(word) < MIN_SECRET_CHARS else MASK
    shown = _GIVEN.sub(rf"\1{MASK}", _TOUCHING.sub(rf"\1{MASK}", word), count=1)
    for secret in shaped_secrets(shown):
        shown = shown.replace(secret, MASK)
    return shown
