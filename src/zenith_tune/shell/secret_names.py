"""Which names mark a secret, and which texts are one whatever their name."""

from __future__ import annotations

import re
from collections.abc import Iterator

from zenith_tune.shell.lexer import names

MASK = "***"
MIN_SECRET_CHARS = 3


_PASSWORDS = ("secret", "secrets", "password", "passwd", "passphrase", "passcode", "credential", "credentials")
_OF_SERVICES = names(
    """
    access account admin anthropic api app auth aws azure bearer bitbucket clearml client cohere comet dashscope deploy
    docker encryption gcp gemini gh git github gitlab google hf hub hugging huggingface jwt kaggle license login mistral
    mlflow modelscope my neptune ngc npm nvidia oauth openai private push pypi refresh registry replicate secret session
    shared sas signing slack ssh storage swanlab telegram together vault wandb webhook
    """
)
_OF_MODELS = names(
    """
    add added answer assistant audio batch begin blank bos cache chosen cls column context control data decoder
    delimiter dict doc document draft empty end eod eom eos eot experiment expert extra feature field fim first forced
    foreign frame fused gen generated gold gpg ignore image img index input inst instruction join json label lang
    language last latent loss mask max merge message metric min modality mm mrope name new next num object output
    pad padding page patch per position prefix primary prng prompt public query question random reasoning rejected
    response rng rope round router row sample score seed sep separator seq sort source special speech start state step
    stop suffix sys system target text think tool total train trigger unk val value video vision vit vocab word
    """
)
_OF_SECRETS = names("api access auth private")
"""Whose keys and tokens are secrets in the plural, too."""
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


def marks_secret(name: str) -> bool:
    """Tell from the words of an option's or variable's name whether its value is a secret.

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
    at, tail = next(((at, tail) for at, word in enumerate(words) if (tail := _TAIL.fullmatch(word))), (0, None))
    if tail is None:
        return False
    others = {*words[:at], *words[at + 1 :], tail[1]}
    if not others.isdisjoint(_OF_MODELS) or (tail[3] and others.isdisjoint(_OF_SECRETS)):
        return False
    if not others.isdisjoint(_OF_SERVICES):  # HF_TOKEN, and HF_TOKEN_RO
        return True
    # A token of nothing else is one; of keys, only a variable's, which is written in capitals.
    return at == len(words) - 1 and not tail[1] and (tail[2] == "token" or name.endswith("KEY"))


WELL_KNOWN = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_(?=[a-z0-9]*[A-Z])[A-Za-z0-9]{16,}|hf_[a-z0-9]{28,}"
    r"|sk-(?:\w+-)*[A-Za-z0-9]{16,}[\w-]*|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}"
    r"|glpat-[\w-]{16,}|xox[a-z]-[\w-]{8,}|A(?:KIA|SIA)[A-Z0-9]{12,}|AIza[\w-]{30,}|nvapi-[\w-]{20,}|npm_[A-Za-z0-9]{30,}"
    r"|pypi-[\w-]{30,}|dckr_pat_[\w-]{16,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,})"
)
"""Tokens that are known by their beginning, wherever they stand."""
_VALUE = r"['\"]?([^\s'\"|;&]{3,})"
_CONTEXTS = re.compile(
    r"://[^/\s:@'\"]*:([^/\s'\"]{3,})@"
    r"|https?://([^/\s:@'\"]{10,})@"
    rf"|(?i:authorization['\"]?\s*[:=]\s*['\"]?\w+\s+{_VALUE})"
    r"|\b[Bb]earer\s+([\w.~+/=-]{6,})"
    r"|hooks\.slack\.com/services/([\w/]{16,})"
    r"|[?&](?i:sig|signature|x-(?:amz|goog)-(?:signature|credential|security-token))=([^&\s'\"]{3,})"
    # What programs take as a password.
    rf"|\bmachine\s+\S+\s+login\s+\S+\s+password\s+{_VALUE}"
    rf"|\b(?:wandb|vault)\s+login\s+(?:-\S+\s+)*(?!-){_VALUE}"
    r"|\b(?:huggingface_hub|hf|wandb)\.login\(\s*(?:\w+\s*=\s*)?['\"]([^'\"]{3,})"
    rf"|\bcurl\b[^|;&\n]*?\s(?:-[uU]|--(?:proxy-)?user)[ =]?['\"]?(?!\d+:\d+\b)[^:\s'\"]+:{_VALUE}"
    rf"|\bcurl\b[^|;&\n]*?\s(?:-b|--cookie)[ =]?['\"]?\w+={_VALUE}"
    rf"|\b(?:sshpass|mysql\w*|mariadb\w*|7za?|login)\b[^|;&\n]*?\s-p ?{_VALUE}"
    rf"|\b(?:unzip\b[^|;&\n]*?\s-P|redis-cli\b[^|;&\n]*?\s-a|openssl\b[^|;&\n]*?\s-k) ?{_VALUE}"
    rf"|\bopenssl\b[^|;&\n]*?\spass:{_VALUE}"
    rf"|\bcreate secret\b[^|;&\n]*?--from-literal=[\w.-]+={_VALUE}"
)
_READS_SECRET = re.compile(
    r"--(?:password|token)-stdin|--with-token|\bsudo -S\b|\b(?:wandb|huggingface-cli|swanlab|hf auth) login\b"
    r"|\bread\s+(?:-\w+\s+)*(\w+)"
)
"""A program that reads its secret: what is echoed or written out for it in the same text."""
_ECHOED = re.compile(
    rf"\b(?:echo|printf)\s+(?:-\w\s+|['\"]?%s(?:\\n)?['\"]?\s+)?{_VALUE}['\"]?\s*\|"
    rf"|<<<\s*{_VALUE}|<<-?\s*\w+\n([^\n]{{3,}})"
)
_PLACEHOLDER = re.compile(r"\{\w+\}")


def shaped_secrets(text: str) -> Iterator[str]:
    """Yield what is a secret by what it looks like, or by the program that takes it, whatever its name.

    >>> list(shaped_secrets("git clone https://me:hunter2@host/x"))
    ['hunter2']
    """
    found = [match[0] for match in WELL_KNOWN.finditer(text)]
    found += [match[match.lastindex or 0] for match in _CONTEXTS.finditer(text)]
    if any(match[1] is None or marks_secret(match[1]) for match in _READS_SECRET.finditer(text)):
        found += [match[match.lastindex or 0] for match in _ECHOED.finditer(text)]
    yield from (secret for secret in found if not secret.startswith("$") and not is_placeholder(secret))


def is_placeholder(text: str) -> bool:
    """Tell whether a text is a placeholder such as `{token}`."""
    return _PLACEHOLDER.fullmatch(text) is not None
