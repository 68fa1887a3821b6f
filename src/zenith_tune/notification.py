"""The result of a study, posted to a webhook when it ends."""

from __future__ import annotations

import json
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
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError("--notify must be the http:// or https:// address of a webhook", hint="copy it whole")


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


def notify(url: str, end: StudyEnd) -> str | None:
    """Post the result; returns what went wrong, without the address, which may be a secret."""
    body = json.dumps(notification(end), default=str).encode()
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):
            return None
    except (OSError, ValueError) as error:
        return f"--notify: the webhook did not take the result ({error})"
