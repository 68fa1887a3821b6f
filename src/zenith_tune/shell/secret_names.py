"""Which names and shapes mark a secret, and which names only belong to the vocabulary of language models."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from zenith_tune.shell.lexer import names

MASK = "***"
MIN_SECRET_CHARS = 3


_PASSWORDS = ("secret", "secrets", "password", "passwd", "passphrase", "passcode", "credential", "credentials")
_OF_SERVICES = names(
    """
    access account admin anthropic api app auth aws azure bearer bitbucket clearml client cohere comet dashscope deploy
    docker encryption gcp gemini gh git github gitlab google hf hub hugging huggingface jwt kaggle license login mistral
    mlflow modelscope neptune ngc npm nvidia oauth openai private push pypi refresh registry replicate session shared
    sas signing slack ssh storage swanlab telegram together vault wandb webhook
    """
)
_OF_MODELS = names(
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
_ABOUT = names(
    "file path dir folder name url type length len size count limit ttl header field column env var id ids index stdin"
)
_TAIL = re.compile(r"(.*?)(token|key)(s?)")
# Short words, which count only as the last of a name: bypass, author and compass are none of them.
_SHORT = re.compile(
    r"(?:db|ftp|mail|my|mysql|pg|root|smtp|ssh|user)?(?:pass|pw|pwd)|auth|authorization|cookies?|jwt|pat"
)
# A pass is also a walk through the data, a pwd the folder of a container, and --no-auth is followed by anything.
_NOT_PASSWORDS = {
    "auth": names("disable enable no require skip use without"),
    "pass": names("backward bwd by dry eval first forward full fwd multi n num one per second single total train two"),
    "pwd": names("apptainer container init singularity"),
}
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z][a-z])")
# An `access_key_id` is as secret as the key.
_SPELT_OUT = re.compile(r"(?:.*_)?(?:secret_id|key_id|(?:key|token)_(?:str|string|val|value))")
_RANDOM = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])\S*(?:[A-Za-z0-9]{16,}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\S*")


def marks_secret(name: str, value: str = "") -> bool:
    """Tell from the name of an option or variable whether its value is a secret; a doubtful name needs a random value.

    >>> [marks_secret(name) for name in ("--hf-token", "WANDB_API_KEY", "--pad-token-id", "--tokenizer-model")]
    [True, True, False, False]
    """
    words = [word for word in re.split(r"[^a-z0-9]+", _HUMP.sub("_", name).lower()) if word]
    of_service = not _OF_SERVICES.isdisjoint(words)
    if _SPELT_OUT.fullmatch("_".join(words)) and (of_service or words[-2] == "secret"):
        return True
    if not words or words[-1] in _ABOUT or name == "PWD":
        return False
    if any(word.endswith(_PASSWORDS) for word in words):
        return True
    if _SHORT.fullmatch(words[-1]):
        return _NOT_PASSWORDS.get(words[-1], frozenset()).isdisjoint(words)
    tail = _TAIL.fullmatch(words[-1])
    if tail is None:
        return not {"token", "key"}.isdisjoint(words) and _RANDOM.fullmatch(value) is not None
    qualifiers = {*words[:-1], tail[1]} - {""}
    if not qualifiers.isdisjoint(_OF_SERVICES):
        return True
    if tail[3] or not qualifiers.isdisjoint(_OF_MODELS):
        return False
    # Variables are written in capitals; one that is called a token or key is taken at its word.
    is_plain = name.endswith(("TOKEN", "KEY")) or (tail[2] == "token" and not qualifiers)
    return is_plain or _RANDOM.fullmatch(value) is not None


WELL_KNOWN = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}"
    r"|glpat-[\w-]{16,}|xox[a-z]-[\w-]{8,}|A(?:KIA|SIA)[A-Z0-9]{12,}|AIza[\w-]{30,}|nvapi-[\w-]{20,}|npm_[A-Za-z0-9]{30,}"
    r"|pypi-[\w-]{30,}|dckr_pat_[\w-]{16,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,})"
)
"""Tokens that are known by their beginning, wherever they stand."""
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


_OPTION_NAME = re.compile(r"--?[A-Za-z][\w.-]*")
# What follows an equals sign, a header's colon, a default of the shell, or an option within the same word.
_GIVEN = re.compile(r"(=|:\s|:[-+?]|(?:^|[\s(`])--?[A-Za-z][\w.-]*\s)\s*\S.{2,}", re.DOTALL)
_TOUCHING = re.compile(r"\A(-[A-Za-z]).{3,}", re.DOTALL)


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
