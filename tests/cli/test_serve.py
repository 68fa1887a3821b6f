"""The real command: it serves a study that another process tunes, and ends cleanly."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FAKE_TRAINER
from tests.report.studies import TRIALS, recorded
from tests.serve.served import Client
from tests.started_processes import start_forked, wait_until
from tests.warm_process import WarmCommand, run_command
from zenith_tune.serve.access import Access


class Remote:
    """Stand for a server in another process, whose page's secret is read from its page."""

    def __init__(self, port: int, token: str | None = None) -> None:
        self.port = port
        self.access = Access(token, port)


@contextmanager
def serving(folder: Path, *options: str, env: dict[str, str] | None = None) -> Iterator[tuple[WarmCommand, str]]:
    """Start the command and return its process and the line with its address."""
    state = {"XDG_STATE_HOME": str(folder / "state")}
    process = start_forked(["serve", *options], folder, {**os.environ, **state, **(env or {})})
    try:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield process, line
    finally:
        process.kill()
        process.communicate()


def client_of(line: str) -> Client:
    match = re.search(r"http://[^:]+:(\d+)/\?token=([\w.~-]{32,})$", line.strip())
    assert match is not None, line
    remote: Any = Remote(int(match[1]))
    return Client(remote, {"Authorization": f"Bearer {match[2]}"})


def test_a_study_that_another_process_tunes_is_followed_and_asked(tmp_path: Path) -> None:
    optimize = ["optimize", "--preset", "megatron", "--study-name", "s"]
    trainer = [sys.executable, str(FAKE_TRAINER), "--iteration-seconds", "0.2", "--train-iters", "200"]
    options = ["--args", "n_gpus=8,gbs=16", "--n-trials", "3", "--no-baseline", "--no-early-stop"]
    tuner = start_forked([*optimize, *options, "--", *trainer], tmp_path, os.environ)
    try:
        wait_until(lambda: (tmp_path / "zenithtune-out" / "s" / "trials" / "0000" / "log.txt").exists())
        with serving(tmp_path) as (process, line):
            assert line.startswith("serving study s: http://127.0.0.1:")
            client = client_of(line)
            csrf = re.search(r'"csrf":"([^"]+)"', client.get("/").text)
            assert csrf is not None
            client.server.access.csrf = csrf[1]
            with client.events() as events:
                news = next(
                    news for news in events if any(t.get("progress", {}).get("iteration") for t in news["trials"])
                )
                assert news["trials"][0]["number"] == 0
                assert client.post("/pause").status == 202
                assert client.post("/trial/0/cancel").status == 202
                ended = next(news for news in events if any(trial["state"] == "cancelled" for trial in news["trials"]))
                assert ended["trials"][0]["cause"].endswith("by hand")
                tuner.send_signal(signal.SIGINT)
                tuner.wait(500)
                wait_until(lambda: client.get("/data.json").json()["live"]["state"] == "ended")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=500)
            assert (process.returncode, out.splitlines()[-1], err) == (0, "ended", "")
    finally:
        tuner.kill()
        tuner.wait()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_an_address_comes_with_a_token_also_where_only_this_machine_reaches_it(host: str, tmp_path: Path) -> None:
    recorded(tmp_path / "zenithtune-out", TRIALS[:2])
    with serving(tmp_path, "--host", host) as (process, line):
        client = client_of(line)
        assert client.get("/data.json", Authorization="").status == 401
        assert client.get("/data.json").json()["name"] == "s"
        assert process.stdout is not None
        assert ("not encrypted" in process.stdout.readline()) is (host == "0.0.0.0")
        process.terminate()
        _, err = process.communicate(timeout=500)
        assert (process.returncode, err) == (0, "")


def test_the_planner_needs_no_study(tmp_path: Path) -> None:
    with serving(tmp_path, "--planner") as (process, line):
        assert line.startswith("serving the planner: http://127.0.0.1:")
        client = client_of(line)
        assert client.get("/plan?model=llama3-8b&cluster=h100x8&gbs=64&seq=4096").json()["best"]
        assert client.get("/plan", Authorization="").status == 401
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=500)
        assert (process.returncode, out.splitlines()[-1], err) == (0, "ended", "")
        assert list(tmp_path.iterdir()) == [tmp_path / "state"]


def test_the_page_is_opened_in_the_browser_that_the_user_has(tmp_path: Path) -> None:
    recorded(tmp_path / "zenithtune-out", TRIALS[:2])
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > "{tmp_path}/opened"\nexec sleep 2\n')
    browser.chmod(0o755)
    with serving(tmp_path, "--open", env={"BROWSER": f"{browser} %s"}) as (_, line):
        wait_until(lambda: (tmp_path / "opened").exists() and (tmp_path / "opened").read_text() != "")
        assert (tmp_path / "opened").read_text().strip() in line
        assert client_of(line).get("/data.json").status == 200


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ([], "zenithtune-out/studies.db"),
        (["nothing"], "'nothing'"),
        (["--token", "short"], "token must be 16 to 200"),
        (["--port", "70000"], "'--port'"),
        (["a", "b"], "(b)"),
        (["a", "--planner"], "--planner"),
    ],
)
def test_what_cannot_be_served_is_one_line(tmp_path: Path, options: list[str], line: str) -> None:
    done = run_command(["serve", *options], tmp_path, os.environ, 120)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert line in done.stderr.replace(f"{tmp_path}/", "")


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    recorded(tmp_path / "zenithtune-out", TRIALS[:2])
    with serving(tmp_path) as (_, line):
        port = str(client_of(line).server.port)
        done = run_command(["serve", "--port", port], tmp_path, os.environ, 120)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and all(part in done.stderr for part in (port, "127.0.0.1", "--port"))


def test_a_socket_is_its_users_alone_and_is_gone_afterwards(tmp_path: Path) -> None:
    recorded(tmp_path / "zenithtune-out", TRIALS[:2])
    path = tmp_path / "page.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))  # what a killed server left
    with serving(tmp_path, "--socket", str(path)) as (process, line):
        assert line.strip().endswith(str(path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(500)
            connection.connect(str(path))
            connection.sendall(b"GET /data.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.makefile("rb").readline().split()[1] == b"200"
        done = run_command(["serve", "--socket", str(path)], tmp_path, os.environ, 120)
        assert done.returncode == 2 and str(path) in done.stderr
        process.terminate()
        _, err = process.communicate(timeout=500)
        assert (process.returncode, err) == (0, "")
    assert not path.exists()
