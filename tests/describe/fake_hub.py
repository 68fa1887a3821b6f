"""A Hugging Face hub on this machine: as much of its protocol as fetching one config.json takes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
QWEN3_8B = {
    "model_type": "qwen3",
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "vocab_size": 151936,
}
REFUSALS = {
    "org/gated": (403, "GatedRepo"),
    "org/missing": (404, "RepoNotFound"),
    "org/private": (401, "RepoNotFound"),
    "org/weights-only": (404, "EntryNotFound"),
}


class _Hub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.closing = threading.Event()
        self.served: set[str] = set()


class _Handler(BaseHTTPRequestHandler):
    server: _Hub

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        repo = self.path.strip("/").removesuffix("/resolve/main/config.json")
        # The slow one never answers; the tired one answers once.
        if repo == "org/slow" or (repo == "org/tired" and repo in self.server.served):
            self.server.closing.wait()
        status, code = REFUSALS.get(repo, (200, ""))
        if repo == "org/private" and self.headers.get("Authorization") == "Bearer hf_right":
            status, code = 200, ""
        body = json.dumps(QWEN3_8B).encode() if status == 200 else b""
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("X-HF-Warning", "topic; a warning from the hub")
        self.send_header("ETag", '"0123456789"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)
            self.server.served.add(repo)

    def log_message(self, *_: Any) -> None:
        """Stay quiet."""


@contextmanager
def fake_hub() -> Iterator[str]:
    """Serve on a free port and yield the address for HF_ENDPOINT."""
    server = _Hub()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()
