"""Who may look, and who may ask: the token, the name that the server is called by, and where a request comes from."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import os
import re
import secrets
from email.message import Message
from http.cookies import CookieError, SimpleCookie
from pathlib import Path

from zenith_tune.errors import UsageError
from zenith_tune.study.files import write_atomically

TOKEN = re.compile(r"[A-Za-z0-9._~-]{16,200}")
CSRF_HEADER = "X-Zenithtune-Csrf"
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")


class Access:
    """The right to ask; `token` is None where everybody who reaches the server may look."""

    def __init__(self, token: str | None, port: int = 0) -> None:
        self.token = token
        self.csrf = secrets.token_urlsafe(24)
        """What only the page knows, so that no other page can ask anything of a study."""
        self.cookie_name = f"zenithtune-{port}"
        self._cookie_value = secrets.token_hex(32)

    def knows_host(self, host: str) -> bool:
        """Tell whether a request is meant for this server.

        Without a token only the names of this machine itself are: any other may be a stranger's, who let it point here
        to read along. With a token such a stranger has nothing to show.
        """
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1].strip("[]").lower().rstrip(".")
        return self.token is not None or is_loopback(name)

    def lets_in(self, headers: Message[str, str]) -> bool:
        """Tell whether a request shows the token, or the cookie that it was changed for."""
        if self.token is None:
            return True
        kind, _, shown = (headers.get("Authorization") or "").partition(" ")
        if kind.lower() == "bearer" and self.is_token(shown.strip()):
            return True
        try:
            cookie = SimpleCookie(headers.get("Cookie") or "").get(self.cookie_name)
        except CookieError:
            return False
        return cookie is not None and _same(cookie.value, self._cookie_value)

    def is_token(self, text: str) -> bool:
        """Compare with the token, in a time that gives nothing of it away."""
        return self.token is not None and _same(text, self.token)

    def cookie(self) -> str:
        """Return the cookie that stands for the token from its first use on, until the server ends."""
        return f"{self.cookie_name}={self._cookie_value}; Path=/; HttpOnly; SameSite=Strict"

    def refusal(self, headers: Message[str, str]) -> str | None:
        """Return why a request to a study is refused: it must come from this server's own page."""
        if (headers.get("Content-Type") or "").partition(";")[0].strip().lower() != "application/json":
            return "a request must be sent as application/json"
        origin = (headers.get("Origin") or "").partition("://")[2].lower()
        if not origin or origin != (headers.get("Host") or "").lower():
            return "a request must come from this server's own page"
        return None if _same(headers.get(CSRF_HEADER) or "", self.csrf) else "the page is out of date: load it again"


def checked_token(token: str | None) -> str:
    """Return the token of a server: the one that is given, else the user's own, which is generated once and kept."""
    if token is None:
        return _kept_token(token_path())
    if not TOKEN.fullmatch(token):
        problem = "the token must be 16 to 200 letters, digits, '.', '_', '~' and '-'"
        raise UsageError(
            f"{problem}, but got {len(token)} characters", hint="give another --token, or none to have one generated"
        )
    return token


def token_path() -> Path:
    """Return the file that keeps the user's token, so that an address serves again the next time."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "zenithtune" / "serve-token"


def _kept_token(path: Path) -> str:
    try:
        if not path.stat().st_mode & 0o077 and TOKEN.fullmatch(kept := path.read_text()):
            return kept
    except (OSError, UnicodeError):
        pass
    token = secrets.token_urlsafe(24)
    with contextlib.suppress(OSError):  # without a home it is generated each time
        path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        write_atomically(path, token, is_private=True)
    return token


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _same(shown: str, secret: str) -> bool:
    return hmac.compare_digest(shown.encode(errors="replace"), secret.encode())
