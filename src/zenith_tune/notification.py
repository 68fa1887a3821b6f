"""The result of a study, posted to a webhook when it ends."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

from zenith_tune.errors import UsageError
from zenith_tune.study.changes import changes_text
from zenith_tune.tuning.events import StudyEnd

TIMEOUT_S = 10.0


def check_webhook(url: str) -> None:
    """Refuse what is no address of a webhook."""
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one or parts.username is not None or not url.isprintable() or " " in url:
        problem = "--notify must be the http:// or https:// address of a webhook, without a user's name"
        raise UsageError(problem, hint="copy it whole")


def notification(end: StudyEnd) -> dict[str, Any]:
    """Return the message: `text` for people, which chat programs show, and its parts for programs."""
    verdict = end.verdict
    changes = changes_text(verdict.changes) if verdict is not None else ""
    headline = verdict.headline if verdict is not None else end.why
    lines = [f"{end.study_name}: {headline}", *([f"changed: {changes}"] if changes else []), f"ended: {end.why}"]
    return {
        "text": "\n".join(lines),
        "study": end.study_name,
        "reason": str(end.reason),
        "why": end.why,
        "verdict": asdict(verdict) if verdict is not None else None,
        "changes": changes,
        "best_command": end.best_command,
    }


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would be followed without the result."""

    def redirect_request(self, *_: Any) -> None:
        return None


def notify(url: str, end: StudyEnd) -> str | None:
    """Post the result; returns what went wrong, without the address, which may be a secret."""
    body = json.dumps(notification(end), default=str).encode()
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
    problems: list[str | None] = []

    def post() -> None:
        try:
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT_S):
                problems.append(None)
        except urllib.error.HTTPError as error:
            problems.append(f"it answers HTTP {error.code}")
        except Exception as error:  # whatever a server sends: the study is over, and ended well
            reason = getattr(error, "reason", error)
            problems.append(f"{type(reason).__name__}")

    thread = threading.Thread(target=post, daemon=True)  # an answer may come a byte at a time
    thread.start()
    thread.join(TIMEOUT_S + 1)
    problem = problems[0] if problems else f"no answer within {TIMEOUT_S:.0f} s"
    return None if problem is None else f"--notify: the webhook did not take the result ({problem})"
