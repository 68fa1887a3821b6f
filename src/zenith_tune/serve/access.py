"""Who may look, and who may ask: the token, the name that the server is called by, and where a request comes from."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
from email.message import Message
from http.cookies import CookieError, SimpleCookie

from zenith_tune.errors import UsageError

TOKEN = re.compile(r"[A-Za-z0-9._~-]{16,200}")
LOCAL_NAMES = frozenset(("localhost", "127.0.0.1", "::1"))
CSRF_HEADER = "X-Zenithtune-Csrf"
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?")


class Access:
    """Judge requests; `token` is None where everybody who reaches the server may look."""

    def __init__(self, token: str | None, port: int = 0) -> None:
        self.token = token
        self.csrf = secrets.token_urlsafe(24)
        """What only the page knows, so that no other page can ask anything of a study."""
        self.cookie_name = f"zenithtune-{port}"

    def knows_host(self, host: str) -> bool:
        """Tell whether a request is meant for this server.

        Without a token only the names of this machine itself are: any other may be a stranger's, who let it point here
        to read along. With a token such a stranger has nothing to show.
        """
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1].strip("[]").lower().rstrip(".")
        return self.token is not None or name in LOCAL_NAMES or is_loopback(name)

    def lets_in(self, headers: Message[str, str]) -> bool:
        """Tell whether a request shows the token, or the cookie that it was changed for."""
        if self.token is None:
            return True
        kind, _, shown = (headers.get("Authorization") or "").partition(" ")
        if kind.lower() == "bearer" and self.is_token(shown.strip()):
            return True
        return _same(_cookie(headers.get("Cookie") or "", self.cookie_name), self._cookie_value())

    def is_token(self, text: str) -> bool:
        """Compare with the token, in a time that gives nothing of it away."""
        return self.token is not None and _same(text, self.token)

    def cookie(self) -> str:
        """Return the cookie that stands for the token from its first use on."""
        return f"{self.cookie_name}={self._cookie_value()}; Path=/; HttpOnly; SameSite=Strict"

    def refusal(self, headers: Message[str, str]) -> str | None:
        """Return why a request to a study is refused: it must come from this server's own page."""
        if (headers.get("Content-Type") or "").partition(";")[0].strip().lower() != "application/json":
            return "a request must be sent as application/json"
        origin = (headers.get("Origin") or "").partition("://")[2].lower()
        if not origin or origin != (headers.get("Host") or "").lower():
            return "a request must come from this server's own page"
        return None if _same(headers.get(CSRF_HEADER) or "", self.csrf) else "the page is out of date: load it again"

    def _cookie_value(self) -> str:
        return hmac.new((self.token or "").encode(), b"zenithtune cookie", hashlib.sha256).hexdigest()


def checked_token(token: str | None, host: str) -> str | None:
    """Return the token that a server on `host` needs: the one that is given, else one made up where others reach it."""
    if token is not None and not TOKEN.fullmatch(token):
        problem = "the token must be 16 to 200 letters, digits, '.', '_', '~' and '-'"
        raise UsageError(
            f"{problem}, but got {len(token)} characters", hint="give another --token, or none to have one made up"
        )
    return token if token is not None or is_loopback(host) else secrets.token_urlsafe(24)


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address.

    >>> is_loopback("127.0.0.2"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _cookie(text: str, name: str) -> str:
    try:
        found = SimpleCookie(text).get(name)
    except CookieError:
        return ""
    return found.value if found is not None else ""


def _same(shown: str, secret: str) -> bool:
    return hmac.compare_digest(shown.encode(errors="replace"), secret.encode())
