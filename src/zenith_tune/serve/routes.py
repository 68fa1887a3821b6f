"""What the server answers to which path."""

from __future__ import annotations

import html
import json
import os
import re
import threading
from dataclasses import dataclass
from email.message import Message
from functools import cache
from importlib import resources
from urllib.parse import parse_qs, quote, urlsplit

from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.record.view import TrialView, mask_lines
from zenith_tune.report.html.page import render_page
from zenith_tune.serve.access import Access
from zenith_tune.serve.answer import HTML, JSON, TEXT, Answer, json_bytes
from zenith_tune.serve.live_study import ControlUnavailable, LiveStudy
from zenith_tune.serve.running_progress import last_log
from zenith_tune.serve.study_index import StudyIndex
from zenith_tune.study.files import open_regular


def problem_page(problem: str) -> str:
    """Return a page that says why a study cannot be shown, and looks again by itself."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="5">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>zenithtune</title></head>'
        f'<body><main><h1>The study cannot be shown</h1><p role="alert">{html.escape(problem)}</p>'
        "<p>This page looks again every five seconds.</p></main></body></html>\n"
    )


@cache
def _script() -> str:
    return f"const LIVE_STYLE = {json.dumps(_asset('live.css'))};\n{_asset('live.js')}"


def _asset(name: str) -> str:
    return resources.files("zenith_tune.serve").joinpath("assets", name).read_text(encoding="utf-8")


MAX_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPiece:
    """A piece of a log, and where the next one begins."""

    text: str = ""
    next_byte: int = 0
    size_bytes: int = 0


def log_piece(each: TrialView, start: int) -> LogPiece:
    """Return what a trial's last run has logged from byte `start` on; of more than 64 KiB, the last.

    A piece begins and ends with a line: the half of a secret is not known for one.
    """
    path = last_log(each)
    if path is None:
        return LogPiece()
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            begin = max(0, size - MAX_BYTES, min(start, size))
            # With the byte before it, which shows whether a line begins here.
            file.seek(max(begin - 1, 0))
            data = file.read(min(size - max(begin - 1, 0), MAX_BYTES + 1))
    except OSError:
        return LogPiece()
    if begin > 0:
        dropped = data.find(b"\n") + 1 or len(data)
        begin, data = begin - 1 + dropped, data[dropped:]
    if each.is_running:
        data = data[: data.rfind(b"\n") + 1]
    text = data.decode("utf-8", errors="replace")
    return LogPiece(text="\n".join(mask_lines(text.split("\n"))), next_byte=begin + len(data), size_bytes=size)


MAX_ARGUMENTS = 20
_LOG = re.compile(r"/trial/([0-9]{1,9})/log")
_CANCEL = re.compile(r"/trial/([0-9]{1,9})/cancel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An HTTP request."""

    method: str
    target: str
    headers: Message[str, str]
    body: bytes = b""

    @property
    def path(self) -> str:
        return self._split()[0]

    def arguments(self) -> dict[str, str]:
        return {name: found[-1] for name, found in parse_qs(self._split()[1]).items()}

    def argument(self, name: str) -> str | None:
        return self.arguments().get(name)

    def _split(self) -> tuple[str, str]:
        try:
            parts = urlsplit(self.target)
        except ValueError:
            return "", ""
        return parts.path, parts.query


@dataclass(frozen=True, slots=True, kw_only=True)
class Watching:
    """An answer that continues for as long as somebody listens."""

    study: LiveStudy
    marker: str | None


class Routes:
    """The answers to requests about the studies of an index."""

    def __init__(self, studies: StudyIndex, access: Access) -> None:
        self._studies, self._access = studies, access
        self._lock = threading.Lock()
        self._data: dict[str, tuple[str, bytes]] = {}

    def answer(self, request: Request) -> Answer | Watching:
        """Return the answer; who is not let in learns nothing."""
        if not self._access.knows_host(request.headers.get("Host") or ""):
            return Answer.line(421, "this server is not called so: use its address as it printed it")
        if request.target.count("&") >= MAX_ARGUMENTS:  # more than any page of ours asks
            return Answer.line(400, f"an address has at most {MAX_ARGUMENTS} arguments")
        if (token := request.argument("token")) is not None and self._access.token is not None:
            return self._enter(request, token)
        if not self._access.lets_in(request.headers):
            problem = "a token is needed: open the address that zenithtune serve printed, or send Authorization: Bearer"
            return Answer.line(401, problem, **{"WWW-Authenticate": "Bearer"})
        try:
            return self._get(request) if request.method in ("GET", "HEAD") else self._post(request)
        except ControlUnavailable as error:
            return Answer.json({"problem": str(error)}, 409)
        except UsageError as error:
            status = 404 if isinstance(error, UnknownNameError) else 503
            if request.path == "/":
                return Answer(status=status, body=problem_page(str(error)).encode(), kind=HTML)
            return Answer.json({"problem": str(error)}, status)

    def _enter(self, request: Request, token: str) -> Answer:
        if request.method != "GET" or not self._access.is_token(token):
            return Answer.line(401, "this is not the token of this server: use the address as it printed it")
        study = request.argument("study")
        where = f"/?study={quote(study, safe='')}" if study is not None else "/"
        return Answer.line(303, "welcome", Location=where, **{"Set-Cookie": self._access.cookie()})

    def _get(self, request: Request) -> Answer | Watching:
        study = request.argument("study")
        match request.path:
            case "/":
                seen, data = self._studies.get(study).data()
                server = {"marker": seen, "csrf": self._access.csrf, "studies": self._studies.names()}
                page = render_page({**data, "server": server}, more_script=_script(), connect="'self'")
                return Answer(body=page.encode(), kind=HTML)
            case "/data.json":
                return self._whole(self._studies.get(study), request)
            case "/events":
                marker = request.headers.get("Last-Event-ID") or request.argument("since")
                live = self._studies.get(study)
                live.look()
                return Watching(study=live, marker=marker)
            case "/studies":
                return Answer(body=render_page(self._studies.list_object()).encode(), kind=HTML)
            case "/studies.json":
                return Answer.json({"studies": self._studies.names()})
            case path if match := _LOG.fullmatch(path):
                return self._log(self._studies.get(study), int(match[1]), request.argument("from"))
        return _wrong_way(request) if _is_request(request.path) else Answer.line(404, "there is no such page")

    def _post(self, request: Request) -> Answer:
        if not _is_request(request.path):
            return _wrong_way(request)
        if refusal := self._access.refusal(request.headers):
            return Answer.json({"problem": refusal}, 403)
        try:
            is_object = isinstance(json.loads(request.body), dict)
        except (ValueError, RecursionError):
            is_object = False
        if not is_object:
            return Answer.json({"problem": "a request is sent with a JSON object, such as {}"}, 400)
        study = self._studies.get(request.argument("study"))
        if match := _CANCEL.fullmatch(request.path):
            study.cancel(int(match[1]))
        else:
            study.pause(request.path == "/pause")
        return Answer.json({"asked": True}, 202)

    def _whole(self, study: LiveStudy, request: Request) -> Answer:
        marker = study.look()
        tag = f'"{marker}"'
        if tag in [each.strip().removeprefix("W/") for each in (request.headers.get("If-None-Match") or "").split(",")]:
            return Answer(status=304, kind=JSON, headers={"ETag": tag})
        with self._lock:
            known, body = self._data.get(study.name, ("", b""))
        if known != marker:
            marker, data = study.data()
            body = json_bytes({**data, "marker": marker})
            with self._lock:
                self._data = {study.name: (marker, body)}
        return Answer(body=body, kind=JSON, headers={"ETag": f'"{marker}"'})

    def _log(self, study: LiveStudy, number: int, start: str | None) -> Answer:
        each = next((each for each in study.view().trials if each.number == number), None)
        if each is None:
            return Answer.line(404, f"study {study.name!r} has no trial {number}")
        piece = log_piece(each, int(start) if start and re.fullmatch(r"[0-9]{1,15}", start) else 0)
        headers = {"X-Log-Next": str(piece.next_byte), "X-Log-Size": str(piece.size_bytes)}
        return Answer(body=piece.text.encode(), kind=TEXT, headers=headers)


def _is_request(path: str) -> bool:
    return path in ("/pause", "/resume") or _CANCEL.fullmatch(path) is not None


def _wrong_way(request: Request) -> Answer:
    allowed = "POST" if _is_request(request.path) else "GET, HEAD"
    return Answer.line(405, f"{request.method} is not for this path", Allow=allowed)
