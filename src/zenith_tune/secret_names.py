"""Which names say that their value is a secret, and which only speak of language models."""

from __future__ import annotations

import re
from enum import Enum


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
    signing slack ssh storage swanlab telegram together vault wandb webhook
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


def secrecy_of(name: str) -> Secrecy:
    """Tell from an option's or variable's name whether its value is a secret.

    >>> [secrecy_of(name).value for name in ("--hf-token", "WANDB_API_KEY", "--pad-token-id", "--tokenizer-model")]
    ['secret', 'secret', 'open', 'open']
    """
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]
    if words[-2:] == ["key", "id"] and _OF_SERVICES.intersection(words):
        return Secrecy.SECRET
    if not words or words[-1] in _ABOUT:
        return Secrecy.OPEN
    if any(word.endswith(_SECRET) for word in words):
        return Secrecy.SECRET
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
