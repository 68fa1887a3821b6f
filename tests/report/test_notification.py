"""The result of a study at a webhook, which may be away, slow to answer, or refuse it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.study_tools import Witness, tune
from zenith_tune.errors import UsageError


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Serve a webhook that takes what is posted to /ok, and nothing else."""
    posted: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/ok":
                posted.append(json.loads(body))
            if self.path == "/garbage":
                self.wfile.write(b"secret-token\r\n")
                return
            self.send_response({"/ok": 200, "/moved": 302}.get(self.path, 500), f"boom {self.path}")
            if self.path == "/moved":
                self.send_header("Location", "/ok")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", posted
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_result_is_posted_once_with_text_for_people(
    tmp_path: Path, webhook: tuple[str, list[dict[str, Any]]]
) -> None:
    url, posted = webhook
    witness = Witness()
    tune(tmp_path, notify=f"{url}/ok", listener=witness).optimize()
    [message] = posted
    assert message["study"] == "s" and message["best_command"] == "sh -c 'echo value: 3'"
    assert "s: best: trial 2, 3" in message["text"] and message["verdict"]["sentence"]
    kept = [
        path for path in (tmp_path / "out").rglob("*") if path.is_file() and url in path.read_bytes().decode("latin1")
    ]
    assert kept == [], "the address may be a secret"


@pytest.mark.parametrize("path", ["/refuses", "/moved", "/garbage", None])
def test_a_webhook_that_does_not_take_it_is_a_note_and_no_failure(
    tmp_path: Path, webhook: tuple[str, list[dict[str, Any]]], path: str | None
) -> None:
    url = "http://127.0.0.1:9/secret-token" if path is None else webhook[0] + path
    witness = Witness()
    assert tune(tmp_path, notify=url, listener=witness).optimize() == (3.0, {"x": 3})
    [note] = [note for note in witness.notes if "webhook" in note]
    assert "secret-token" not in note and (path is None or path not in note)
    assert webhook[1] == []


@pytest.mark.parametrize(
    "url", ["", "slack", "ftp://h/x", "http://", "http://[x", "http://h:abc/x", "http://u:p@h/x", "http://h/a b"]
)
def test_what_is_no_webhook_is_refused_before_anything_runs(tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError, match="--notify"):
        tune(tmp_path, notify=url)
