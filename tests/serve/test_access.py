"""Who is let in, and what strangers get."""

from __future__ import annotations

import socket
import stat
import time
from pathlib import Path

import pytest

from tests.report.studies import TRIALS, recorded
from tests.serve.served import Client, served
from zenith_tune.errors import UsageError
from zenith_tune.serve.access import Access, checked_token, is_loopback, token_path
from zenith_tune.serve.server import MAX_CONNECTIONS, MAX_WATCHERS, LiveServer
from zenith_tune.serve.study_index import StudyIndex

TOKEN = "a-token-of-sixteen"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that nobody here writes to."""
    root = tmp_path_factory.mktemp("access") / "out"
    recorded(root, TRIALS[:3])
    return root


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "a b", "[::1", "@"])
def test_a_name_that_a_stranger_lets_point_here_is_refused(root: Path, host: str) -> None:
    with served(root) as client:
        assert client.get("/data.json", Host=host or " ").status == 421
        assert client.get("/", Host=host or " ").status == 421


@pytest.mark.parametrize("host", ["localhost", "localhost:9999", "127.0.0.1:1", "[::1]:8080", "LOCALHOST"])
def test_the_names_of_this_machine_are_known_whatever_the_port_of_a_tunnel(root: Path, host: str) -> None:
    with served(root) as client:
        assert client.get("/data.json", Host=host).status == 200


def test_every_answer_asks_the_browser_to_be_strict(root: Path) -> None:
    with served(root) as client:
        for path in ("/", "/data.json", "/nowhere", "/trial/0/log", "/pause"):
            headers = client.get(path).headers
            assert headers["X-Content-Type-Options"] == "nosniff", path
            assert "frame-ancestors 'none'" in headers["Content-Security-Policy"], path
            assert headers["Referrer-Policy"] == "no-referrer", path
            assert headers["Access-Control-Allow-Origin"] is None, path


def test_with_a_token_nothing_is_shown_without_it(root: Path) -> None:
    with served(root, token=TOKEN) as client:
        for path in ("/", "/data.json", "/events", "/studies.json", "/trial/0/log", "/nowhere"):
            refused = client.get(path)
            assert refused.status == 401 and b"zenithtune serve" in refused.body, path
        assert client.post("/pause").status == 401
        for wrong in ("", "x", TOKEN[:-1], TOKEN + "x", "\xe4" * 16):
            assert client.get("/data.json", Authorization=f"Bearer {wrong}").status == 401
            assert client.get("/data.json", Cookie=f"{client.server.access.cookie_name}={wrong}").status == 401
        assert client.get("/?token=wrong").status == 401
        assert client.get("/data.json", Authorization=f"Bearer {TOKEN}").status == 200
        assert client.get("/data.json", Authorization=f"Bearer {TOKEN}", Host="tuner.example:80").status == 200


def test_the_token_becomes_a_cookie_and_leaves_the_address(root: Path) -> None:
    with served(root, token=TOKEN) as client:
        entered = client.get(f"/?token={TOKEN}&study=s%2F..")
        assert (entered.status, entered.headers["Location"]) == (303, "/?study=s%2F..")
        cookie = entered.headers["Set-Cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and TOKEN not in cookie
        assert client.get("/data.json", Cookie=f"other=1; {cookie.partition(';')[0]}").status == 200
        port = client.server.server_address[1]
    assert Access(TOKEN, port).cookie() != cookie, "a server that starts again asks for the token again"


def test_a_token_is_made_up_once_and_kept_for_its_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made_up = checked_token(None)
    assert len(made_up) >= 32 and checked_token(None) == made_up
    assert stat.S_IMODE(token_path().stat().st_mode) == 0o600
    assert stat.S_IMODE(token_path().parent.stat().st_mode) == 0o700
    token_path().chmod(0o644)
    assert checked_token(None) != made_up, "others may have read it"
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/none")
    assert checked_token(None) != checked_token(None)
    assert checked_token(TOKEN) == TOKEN
    for token in ("short", "with blanks in between", "x" * 201, "quote'quote\"quote'"):
        with pytest.raises(UsageError, match=r"token .*16 to 200"):
            checked_token(token)


def test_two_servers_do_not_share_what_their_pages_know() -> None:
    assert Access(None).csrf != Access(None).csrf


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/..%2f..%2fetc/passwd",
        "/trial/../../control.json/log",
        "/trial/0/log/../../../study.json",
        "/trial/-1/log",
        "/trial/99999999999999999999/log",
        "//evil.example/data.json",
        "/static/live.js",
        "/%00",
    ],
)
def test_no_path_leads_to_a_file(root: Path, path: str) -> None:
    with served(root) as client:
        answer = client.raw(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 404 ") and b"root:" not in answer


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 5000 + b"\r\n", b"431"),
        (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n", b"431"),
        (b"POST /pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n", b"413"),
        (b"POST /pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", b"411"),
        (b"POST /pause HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"411"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"DELETE / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"501"),
        (b"GET /?study=%FF%FE HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
        (b"GET http://[/ HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
        (b"GET /data.json?" + b"a=1&" * 50 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"400"),
    ],
)
def test_what_is_no_request_of_ours_is_one_line(root: Path, request_bytes: bytes, status: bytes) -> None:
    with served(root) as client:
        answer = client.raw(request_bytes)
        # What it does not read to its end may be cut off, but never answered as if it were a request.
        assert answer.startswith(b"HTTP/1.1 " + status) or (status == b"431" and answer == b""), answer[:200]
        assert b"Traceback" not in answer
        assert client.get("/data.json").status == 200


def test_who_sends_slowly_is_left_and_keeps_nobody_waiting(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zenith_tune.serve.server.READ_S", 1.0)
    with served(root) as client:
        slow = [socket.create_connection(("127.0.0.1", client.server.port), timeout=500) for _ in range(20)]
        began = time.monotonic()
        for connection in slow:
            connection.sendall(b"GET / HTTP/1.1\r\n")
        assert client.get("/data.json").status == 200
        while time.monotonic() - began < 1.6:
            for connection in slow:
                try:
                    connection.sendall(b"X")
                except OSError:
                    break
            time.sleep(0.1)
        for connection in slow:
            connection.settimeout(120)
            with connection:
                assert _is_left(connection)


def _is_left(connection: socket.socket) -> bool:
    try:
        return connection.recv(10) == b""
    except ConnectionError:
        return True


def test_connections_that_ask_nothing_lock_nobody_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zenith_tune.serve.server.READ_S", 500.0)
    with served(root) as client:
        address = ("127.0.0.1", client.server.port)
        idle = [socket.create_connection(address, timeout=500) for _ in range(3 * MAX_CONNECTIONS)]
        for _ in range(5):
            assert client.get("/data.json").status == 200
        assert _is_left(idle[0]), "the oldest made room"
        for connection in idle:
            connection.close()


def test_pages_that_are_open_leave_room_for_what_they_ask(root: Path) -> None:
    with served(root) as client:
        watching = [_watch(client) for _ in range(MAX_WATCHERS)]
        assert client.get("/events").status == 503
        assert client.get("/data.json").status == 200
        for connection in watching:
            connection.close()


def _watch(client: Client) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", client.server.port), timeout=500)
    connection.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert connection.recv(12) == b"HTTP/1.1 200"
    return connection


def test_a_port_in_use_is_one_line(root: Path) -> None:
    with served(root) as client, pytest.raises(UsageError, match=rf"{client.server.port} .*127\.0\.0\.1"):
        LiveServer(StudyIndex.open(None, db=None, output_dir=root), "127.0.0.1", client.server.port, None)
    with pytest.raises(UsageError, match=r"--host 192\.0\.2\.1"):
        LiveServer(StudyIndex.open(None, db=None, output_dir=root), "192.0.2.1", 0, None)


def test_loopback_is_this_machine_alone() -> None:
    assert is_loopback("127.0.0.2")
    assert is_loopback("localhost")
    assert not is_loopback("0.0.0.0")
